"""Do our tests see a wrong gradient? Mutants of every gradient rule and every kernel's backward, each run against the tests.

    python tests/mutation/mutants.py --list                    # what there is
    python tests/mutation/mutants.py --sample 20 --seed 0      # a random sample
    python tests/mutation/mutants.py --only ops/elementwise    # those of a file

A mutant is the package with one expression changed: a sign, a factor, a dropped term or factor, swapped operands. It is
caught if a test fails, and survives if all pass. The ordinary test run does not run this; CONTRIBUTING.md has the score.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "tinygrad_tf"

# which tests answer for which file: the quickest to fail first
TESTS = {
    "ops": ["tests/ops/test_gradients.py", "tests/ops/test_fused.py", "tests/test_graph.py", "tests/nn", "tests/test_tensor.py"],
    "kernels": ["tests/kernels", "tests/ops/test_fused.py", "tests/models"],
}  # fmt: skip
FIRST = {  # an operation's own kernel tests, before the rest
    "attention": ["tests/kernels/test_attention.py"],
    "activation": ["tests/kernels/test_activation.py"],
    "embedding": ["tests/kernels/test_embedding.py"],
    "linear": ["tests/ops/test_fused.py"],
    "loss": ["tests/kernels/test_loss.py"],
    "normalization": ["tests/kernels/test_normalization.py"],
    "rotary": ["tests/kernels/test_rotary.py"],
}


ALSO = (
    "_scatter_add_rows",
    "_norm_gradient",
    "_softmax_gradient",
    "_rotary",
    "_column_sums",
)  # backwards of other names


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
        return f"{self.file}:{self.line} {self.rule}: {self.kind}: {self.before} -> {self.text}"


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
        if source.text(node.func) in ("_matmul", "_product", "_share"):
            yield source.change(node, rule, "swapped", f"{source.text(node.func)}({source.text(b)}, {source.text(a)})")
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
            if isinstance(decorator, ast.Call) and source.text(decorator.func) == "primitive":
                for keyword in decorator.keywords:
                    if isinstance(keyword.value, ast.Lambda):
                        yield f"{node.name}.{keyword.arg}", keyword.value.body


def backward_functions(source: Source) -> Iterator[ast.FunctionDef]:
    for node in source.tree.body:
        if isinstance(node, ast.FunctionDef) and ("backward" in node.name or node.name in ALSO):
            yield node


def of_function(source: Source, function: ast.FunctionDef) -> Iterator[Mutant]:
    """The mutants of a backward written as statements: of what is stored, accumulated or returned."""
    for node in ast.walk(function):
        values: list[ast.expr] = []
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            values = [node.value]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)):
            values = [node.value]
        elif isinstance(node, ast.Assign) and _is_float(node.value):
            values = [node.value]
        elif (
            isinstance(node, ast.Assign) and isinstance(node.value, ast.IfExp) and isinstance(node.value.body, ast.Call)
        ):
            values = [node.value.body]  # dx = ... if needs[0] else None
        for value in values:
            text = source.text(value)
            if isinstance(value, (ast.Constant, ast.Tuple)) or _is_whole(value) or text.startswith(("np.", "kind(0)")):
                continue
            yield from of_expression(source, value, function.name)


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


def all_mutants() -> dict[str, list[Mutant]]:
    """Every mutant, by rule (`file rule`)."""
    found: dict[str, list[Mutant]] = {}
    for path in sorted((PACKAGE / "ops").glob("*.py")):
        source = Source(path)
        for rule, expression in rules(source):
            found[f"{source.name} {rule}"] = list(of_expression(source, expression, rule))
    for path in sorted([*(PACKAGE / "ops").glob("*.py"), *(PACKAGE / "kernels").glob("*.py")]):
        source = Source(path)
        for function in backward_functions(source):
            mutants = list(of_function(source, function))
            if mutants:
                found[f"{source.name} {function.name}"] = mutants
    return found


def site(folder: Path) -> Path:
    """The package as it is installed: layers and models inside."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE, folder / "tinygrad_tf", ignore=ignored)
    for room in ("nn", "models"):
        shutil.copytree(ROOT / room, folder / "tinygrad_tf" / room, ignore=ignored)
    return folder


def caught(mutant: Mutant, folder: Path, timeout: float) -> str | None:
    """The test that fails, or None. The mutant stands in `folder` while its tests run."""
    file = folder / "tinygrad_tf" / mutant.file
    original = file.read_bytes()
    file.write_bytes(original[: mutant.start] + mutant.text.encode() + original[mutant.end :])
    room = mutant.file.partition(os.sep)[0]
    first = [t for word, tests in FIRST.items() if word in Path(mutant.file).stem for t in tests]
    tests = [t for t in dict.fromkeys(first + TESTS[room]) if (ROOT / t).exists()]
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "passive",
    }
    if room == "kernels":
        environment["TINYGRAD_TF_CACHE_DIR"] = str(folder / "cache")
    options = "-x -q --no-header --tb=no -p no:cacheprovider".split()
    command = [sys.executable, "-P", "-m", "pytest", *options, *tests]
    word = mutant.rule.partition(".")[0].strip("_")
    try:
        for selection in (["-k", word], []):  # the tests that name the operation first
            result = subprocess.run(
                command + selection, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout
            )
            if result.returncode not in (0, 5):  # 5: none has that name
                failed = [line for line in result.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return failed[0].split(" - ")[0] if failed else f"(exit code {result.returncode})"
        return None
    except subprocess.TimeoutExpired:
        return "(no answer in time)"
    finally:
        file.write_bytes(original)
        shutil.rmtree(folder / "cache", ignore_errors=True)


def main() -> None:
    """Run the chosen mutants, and print the score and the survivors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rules whose name (file and operation) contains this")
    parser.add_argument("--sample", type=int, help="so many, at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--each", type=int, default=3, help="at most so many of each rule (0: all)")
    parser.add_argument("--list", action="store_true", help="only list them")
    parser.add_argument("--timeout", type=float, default=1800, help="seconds for the tests of one mutant")
    options = parser.parse_args()
    generator = random.Random(options.seed)
    chosen = []
    for rule, mutants in all_mutants().items():
        if options.only in rule:
            few = 0 < options.each < len(mutants)
            chosen += generator.sample(mutants, options.each) if few else mutants
    if options.sample and options.sample < len(chosen):
        chosen = generator.sample(chosen, options.sample)
    if options.list:
        print("\n".join(map(str, chosen)))
        print(f"{len(chosen)} mutants")
        return
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        place = site(Path(folder))
        for i, mutant in enumerate(chosen):
            start = time.monotonic()
            test = caught(mutant, place, options.timeout)
            print(
                f"[{i + 1}/{len(chosen)}] {'caught  ' if test else 'SURVIVED'} {mutant} ({test}, {time.monotonic() - start:.0f} s)",
                flush=True,
            )
            if test is None:
                survivors.append(mutant)
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} caught")
    for mutant in survivors:
        print(f"survivor: {mutant}")


if __name__ == "__main__":
    main()
