"""What goes wrong between operations that are all right: the value or the gradient changes on its way from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import graph, modes
from ..graph import Array, Node, Op
from .compare import Engine, Finding, Tolerance
from .differences import Ladder, Move
from .problem import Problem
from .walk import Step, Value, Watch, equal, watched


@dataclass
class Gap:
    """A place between two operations: the diagnosis, where it is, and what happens there."""

    diagnosis: str
    step: Step | None
    place: str  # what is meant at the step: "argument b of", "the output of"
    text: str


def gaps(problem: Problem) -> list[Gap]:
    """The gaps of the first kind that there are."""
    mark = next(graph._counter)
    watch = Watch(problem.fn)
    with modes.enable_grad(), watch.follow():
        engine = Engine(problem, watch)
    return _kept(problem, engine, watch, mark) or _changed(watch) or _cut(problem) or _altered(engine, watch)


def _kept(problem: Problem, engine: Engine, steps: list[Step], mark: int) -> list[Gap]:
    """Operands that an earlier call of the function has computed."""
    leaves = {id(leaf.tensor) for leaf in problem.leaves}
    leading = graph._leading_nodes([engine.outs[k] for k in engine.live], leaves)
    return [
        Gap(
            "kept from an earlier call",
            step,
            f"{step.word(i)} of",
            f"was computed by {edge[0].op.name} in an earlier call and kept (in an attribute?): it does not follow the inputs",
        )
        for step in steps
        for i, edge, _ in step.edges
        if edge[0].number < mark and edge[0] in leading
    ]


def _changed(steps: list[Step]) -> list[Gap]:
    """Operands whose numbers are not those that their operation gave."""
    given: dict[Any, tuple[Step, Array]] = {}
    for step in steps:
        if step.node is not None:
            given |= {(step.node, n): (step, out) for n, out in enumerate(step.outputs)}
    found = []
    for step in steps:
        for i, edge, value in step.edges:
            maker, out = given.get(edge, (None, value))
            if maker is not None and out.shape == value.shape and not equal(out, value):
                text = f"is not what {maker.name} gave at {maker.line}: its memory was written without being recorded, "
                text += "by an in-place operation under no_grad(), or through .data or numpy()"
                found.append(Gap("changed in place", step, f"{step.word(i)} of", text))
    return found


def _cut(problem: Problem) -> list[Gap]:
    """Operands that change with the leaves although they carry no gradient."""
    before = watched(problem)
    generator = np.random.default_rng(4)
    kept = [leaf.value.copy() for leaf in problem.leaves]
    try:
        for leaf in problem.leaves:
            leaf.value += 1e-3 * generator.standard_normal(leaf.shape) * np.maximum(1.0, np.abs(leaf.value))
        after = watched(problem)
    finally:
        for leaf, value in zip(problem.leaves, kept, strict=True):
            np.copyto(leaf.value, value)
    found = []
    for a, b in zip(before, after, strict=False):
        if a.name != b.name:
            break
        if a.node is None:
            continue
        for (i, x), (_, y) in zip(a.arrays(), b.arrays(), strict=False):
            array = x.array if isinstance(x, Value) else x
            carries = isinstance(x, Value) and x.requires_grad
            if not carries and array.dtype.kind == "f" and not equal(x, y):
                text = "changes with the inputs and carries no gradient: detach(), numpy(), item(), no_grad()?"
                found.append(Gap("the graph is cut", a, f"{a.word(i)} of", text))
    return found


class _Spy(Op):
    """An operation that notes which gradients it is given, and which it sends."""

    def __init__(self, op: Op, seen: dict[Any, Any], sent: dict[Any, Any]):
        self.op, self.name, self.owns_gradients = op, op.name, False
        self.seen, self.sent = seen, sent

    def gradients(self, node: Node, grads: list[Any], needs: tuple[bool, ...], create_graph: bool) -> Any:
        for n, g in enumerate(grads):
            if g is not None:
                self.seen[node, n] = np.array(g)
        results = self.op.gradients(node, grads, needs, create_graph)
        for edge, needed, meta, result in zip(node.edges, needs, node.metas, results, strict=True):
            if needed and result is not None:
                key = edge if isinstance(edge, tuple) else id(edge)
                self.sent[key] = self.sent.get(key, 0) + np.array(graph._fit(node, result, meta, grads)[0])
        return results


def _spied(
    engine: Engine, nodes: dict[Node, Step], u: Array, sent: dict[Any, Any]
) -> tuple[dict[Any, Array], list[Any]]:
    """The gradients that each output of a node gets for the cotangent u, and those of the leaves."""
    seen: dict[Any, Array] = {}
    before = {node: node.op for node in nodes}
    try:
        for node in nodes:
            node.op = _Spy(node.op, seen, sent)
        return seen, engine.pull(u)
    finally:
        for node, op in before.items():
            node.op = op


def _altered(engine: Engine, steps: list[Step]) -> list[Gap]:
    """Where the gradient that an operation gets is not the sum of those that were sent to it: by a hook, or the engine."""
    sent: dict[Any, Any] = {}
    nodes = {step.node: step for step in steps if step.node is not None}
    u = np.random.default_rng(9).standard_normal(engine.row.shape)
    for k in engine.live:
        out = engine.outs[k]
        if out._node is not None:
            key = out._node, out._index
            sent[key] = sent.get(key, 0) + u[engine.parts[k]].reshape(out._data.shape)
    seen, pulled = _spied(engine, nodes, u, sent)
    found = []
    for node, step in sorted(nodes.items(), key=lambda item: -item[0].number):
        for n in range(len(node.outputs)):
            if (node, n) in seen and (node, n) in sent and not _alike(seen[node, n], sent[node, n]):
                hooks = list((node.hooks or {}).get(n, {}).values())
                found.append(Gap(*_changer(hooks), step, "the gradient of the output of", _what(hooks)))
    for leaf, g in zip(engine.problem.leaves, pulled, strict=True):
        own = id(leaf.tensor)
        if g is not None and leaf.edge is leaf.tensor and own in sent and not _alike(g, sent[own]):
            hooks = list((leaf.tensor._hooks or {}).values())
            found.append(Gap(*_changer(hooks), None, f"the gradient of {leaf.label}", _what(hooks)))
    return found


def _changer(hooks: list[Any]) -> tuple[str]:
    return ("a hook changes the gradient" if hooks else "the gradient changes on its way",)


def _what(hooks: list[Any]) -> str:
    codes = [getattr(h, "__code__", None) for h in hooks]
    names = ", ".join(
        f"{h.__name__} at {c.co_filename}:{c.co_firstlineno}" for h, c in zip(hooks, codes, strict=True) if c
    )
    return (
        f"is changed by its hook {names}"
        if hooks
        else "is not the sum of what its uses sent back: a fault of the engine"
    )


def cancellation(problem: Problem, finding: Finding, tolerance: Tolerance) -> Gap | None:
    """Whether rounding explains the difference, where every rule is right: large numbers whose digits cancel on the way."""
    watch = Watch(problem.fn)
    with modes.enable_grad(), watch.follow():
        engine = Engine(problem, watch)
    nodes = {step.node: step for step in watch if step.node is not None}
    row = engine.parts[finding.output].start + finding.row
    u = np.zeros(engine.row.shape)
    u[row] = 1.0
    seen, _ = _spied(engine, nodes, u, {})
    # an output rounded by eps moves the result by eps times its size times the gradient that it gets
    sizes = {step: float(np.abs(seen[node, n] * step.outputs[n]).sum()) for node, step in nodes.items()
             for n in range(len(step.outputs)) if (node, n) in seen}  # fmt: skip
    if not sizes or not np.isfinite(sum(sizes.values())):
        return None
    leaf = problem.leaves[finding.leaf]
    ladder = Ladder(Move(problem, leaf, finding.column), engine.row, sum(sizes.values()))
    slope, doubt = float(ladder.slope[row]), float(ladder.doubt[row])
    spread, kept = 0.0, leaf.value.copy()
    for seed in range(4):  # the analytic gradient, as it rounds a little further on
        try:
            leaf.value *= 1 + 1e-7 * np.random.default_rng(seed).standard_normal(leaf.shape)
            with modes.enable_grad():
                found = Engine(problem).pull(u)[finding.leaf]
        finally:
            np.copyto(leaf.value, kept)
        if found is not None:
            spread = max(spread, abs(float(found.reshape(-1)[finding.column]) - finding.analytic))
    allowed = tolerance.absolute(finding.block.analytic, finding.block.numeric, engine.row) + tolerance.rtol * abs(
        slope
    )
    if not abs(finding.analytic - slope) <= allowed + doubt + 4 * spread:
        return None
    finding.numeric = slope
    worst = max(sizes, key=lambda step: sizes[step])
    text = f"rounds by 1e-16, which becomes {1e-16 * sizes[worst]:.0e} in the result: its digits cancel further on"
    return Gap("cancellation", worst, "the output of", text)


def _alike(a: Array, b: Array) -> bool:
    return a.shape == b.shape and bool(np.abs(a - b).max(initial=0.0) <= 1e-9 * np.abs(b).max(initial=0.0))
