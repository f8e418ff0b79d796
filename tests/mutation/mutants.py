"""Mutants: the package with one expression of a gradient rule, or of a kernel's backward, changed.

A sign, a factor, a dropped term, factor or statement, swapped operands. `run.py` runs the tests on each.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "tinygrad_tf"

ALSO = {  # backwards of other names, and what rules share
    "ops": ("_column_sums", "_later", "_before", "_decay", "_share", "_square_distance"),
    "kernels": ("_scatter_add_rows", "_norm_gradient", "_rotary", "_dropout"),
}


@dataclass(frozen=True)
class Mutant:
    """One change: in `file`, the source from `start` to `end` (offsets in bytes) becomes `text`."""

    file: str  # relative to the package
    rule: str  # the gradient rule or backward function it belongs to
    kind: str
    line: int
    start: int
    end: int
    before: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.rule}: {self.kind}: {self.before} -> {' '.join(self.text.split())}"


@dataclass(frozen=True)
class Place:
    """An expression with mutants: reached by a test if the test runs it."""

    file: str
    rule: str
    start: int
    end: int
    mutants: tuple[Mutant, ...]


class Source:
    """A file, and where its expressions stand."""

    def __init__(self, path: Path):
        self.path, self.name = path, str(path.relative_to(PACKAGE))
        self.data = path.read_bytes()
        self.starts = [0]
        for line in self.data.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.tree = ast.parse(self.data)

    def span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def text(self, node: ast.expr) -> str:
        start, end = self.span(node)
        return self.data[start:end].decode()

    def change(self, node: ast.expr, rule: str, kind: str, text: str) -> Mutant:
        start, end = self.span(node)
        return Mutant(self.name, rule, kind, node.lineno, start, end, " ".join(self.text(node).split()), text)


def of_expression(source: Source, node: ast.expr, rule: str) -> Iterator[Mutant]:
    """The mutants of one gradient expression: its whole (sign, factor), and the operators inside."""
    text = source.text(node)
    yield source.change(node, rule, "sign", f"(-({text}))")
    yield source.change(node, rule, "factor", f"(({text}) * 1.25)")
    yield source.change(node, rule, "dropped", f"(({text}) * 0.0)")
    yield from of_operators(source, node, rule)


def of_operators(source: Source, node: ast.AST, rule: str) -> Iterator[Mutant]:
    """A dropped term or factor for each operator that is not part of an index or a comparison; swapped operands."""
    if isinstance(node, (ast.Subscript, ast.Compare, ast.Tuple, ast.List, ast.Lambda)):
        return
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult, ast.Div)):
        left, right = source.text(node.left), source.text(node.right)
        word = "dropped term" if isinstance(node.op, (ast.Add, ast.Sub)) else "dropped factor"
        yield source.change(node, rule, word, f"({left})")
        if not isinstance(node.op, ast.Div):
            yield source.change(node, rule, word, f"({right})")
        if isinstance(node.op, (ast.Sub, ast.Div)):
            yield source.change(
                node, rule, "swapped", f"({right} {'-' if isinstance(node.op, ast.Sub) else '/'} {left})"
            )
    if isinstance(node, ast.Call) and len(node.args) == 2 and not node.keywords:
        a, b = node.args
        called = source.text(node.func)
        if called in ("_matmul", "_product", "_share") or called.startswith("kernels."):
            yield source.change(node, rule, "swapped", f"{called}({source.text(b)}, {source.text(a)})")
    for child in ast.iter_child_nodes(node):
        yield from of_operators(source, child, rule)


def rules(source: Source) -> Iterator[tuple[str, ast.expr]]:
    """The gradient rules of the primitives in a file: (operation.input, expression)."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            for argument in node.value.args:  # a line of a table: name = _unary(function, name, text, rule)
                if isinstance(argument, ast.Lambda) and source.text(node.value.func) == "_unary":
                    yield f"{node.targets[0].id}.x", argument.body
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call):
                continue
            for keyword in decorator.keywords:
                if not isinstance(keyword.value, ast.Lambda):
                    continue
                body = keyword.value.body
                if source.text(decorator.func) == "primitive":
                    yield f"{node.name}.{keyword.arg}", body
                elif keyword.arg == "backward" and isinstance(body, ast.List):  # a fused operation of one input
                    yield f"{node.name}.backward", body.elts[0]


def backward_functions(source: Source) -> Iterator[ast.FunctionDef]:
    also = ALSO[Path(source.name).parts[0]]
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef) and ("backward" in node.name or node.name in also):
            yield node


def of_function(source: Source, function: ast.FunctionDef) -> Iterator[Place]:
    """The mutants of a backward written as statements: of what is stored, accumulated, returned or done."""
    is_kernel = source.name.startswith("kernels")

    def place(node: ast.expr, mutants: list[Mutant]) -> Place:
        return Place(source.name, function.name, *source.span(node), tuple(mutants))

    for node in ast.walk(function):
        values: list[ast.expr] = []
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            values = [node.value]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
            values = [node.value]
        elif isinstance(node, ast.Assign) and (
            _is_float(node.value) or not is_kernel and isinstance(node.value, ast.BinOp)
        ):
            values = [node.value]
        elif (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp) and isinstance(node.value.body, ast.Call)
        ):
            values = [node.value.body]  # dx = ... if needs[0] else None
        elif isinstance(node, ast.Return) and not is_kernel and isinstance(node.value, ast.List):
            values = [node.value.elts[0]]
        elif isinstance(node, ast.Return) and not is_kernel and "backward" not in function.name and node.value:
            values = [] if isinstance(node.value, ast.Name) else [node.value]
        elif isinstance(node, ast.Expr) and function.decorator_list and isinstance(node.value, ast.Call):
            yield place(node.value, [source.change(node.value, function.name, "dropped statement", "0")])
        for value in values:
            counts = (
                isinstance(node, (ast.Assign, ast.AugAssign))
                and not isinstance(node.value, ast.IfExp)
                and _is_whole(value)
            )
            if (
                isinstance(value, (ast.Constant, ast.Tuple))
                or counts
                or source.text(value).startswith(("np.", "kind(0)"))
            ):
                continue
            yield place(value, list(of_expression(source, value, function.name)))


def _is_float(node: ast.expr) -> bool:
    """Whether an expression is surely arithmetic on numbers: it reads an array's element and multiplies or adds."""
    return (
        isinstance(node, ast.BinOp)
        and any(isinstance(n, ast.Subscript) for n in ast.walk(node))
        and not _is_whole(node)
    )


def _is_whole(node: ast.expr) -> bool:
    """Whether an expression counts or places: shapes, lengths, integer division."""
    return any(
        isinstance(n, ast.FloorDiv | ast.Mod)
        or (isinstance(n, ast.Name) and n.id in ("geometry", "sizes"))
        or (isinstance(n, ast.Attribute) and n.attr in ("shape", "size", "ndim"))
        or (isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id in ("len", "range", "min", "max"))
        for n in ast.walk(node)
    )


def all_places() -> dict[str, list[Place]]:
    """Every expression with mutants, by rule (`file rule`)."""
    found: dict[str, list[Place]] = {}
    for path in sorted([*(PACKAGE / "ops").glob("*.py"), *(PACKAGE / "kernels").glob("*.py")]):
        source = Source(path)
        for rule, expression in rules(source):
            mutants = tuple(of_expression(source, expression, rule))
            place = Place(source.name, rule, *source.span(expression), mutants)
            found.setdefault(f"{source.name} {rule}", []).append(place)
        for function in backward_functions(source):
            places = list(of_function(source, function))
            if places:
                found[f"{source.name} {function.name}"] = places
    return found


def all_mutants() -> dict[str, list[Mutant]]:
    """Every mutant, by rule."""
    return {rule: [m for place in places for m in place.mutants] for rule, places in all_places().items()}


def names(mutants: Iterable[Mutant]) -> list[str]:
    """A name of each that does not change when lines move: what it changes, numbered where that stands there twice."""
    seen: Counter[str] = Counter()
    found = []
    for mutant in mutants:
        name = str(mutant).replace(f":{mutant.line} ", " ", 1)
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return found
