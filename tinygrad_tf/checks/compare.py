"""The numbers: Jacobians by backward and by differences, and which of their elements really disagree.

For outputs y = f(x) backward computes uᵀJ for a cotangent u; differences compute J v for a direction v, with an error that
falls as eps² until rounding takes over. An element that disagrees at the step asked for is looked at again on a ladder
of steps: a kink nearby, a large or tiny element, cancellation are no fault of the gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import graph, modes, rng
from ..graph import Array
from .diagnosis import Block
from .differences import Ladder, Move, central
from .problem import GradcheckError, Problem
from .walk import float32_operation, magnitude

LARGE = 4096  # where "fast" fails on more elements than this, a sample of them explains it
_EPSILON = {t: float(np.finfo(t).eps) for t in (np.float32, np.float64)}
CONFIRMED = 8  # elements that are looked at again before the verdict


@dataclass(frozen=True)
class Tolerance:
    """An element passes if |analytic - numeric| <= atol · min(1, largest entry) + rtol · |numeric|."""

    eps: float = 1e-6
    atol: float = 1e-5
    rtol: float = 1e-3

    def absolute(self, analytic: Array, numeric: Array, outputs: Array) -> float:
        """The part that is the same for one output's whole Jacobian by one leaf; never below what rounding does to it."""
        scale = float(np.nan_to_num(np.maximum(np.abs(analytic), np.abs(numeric)), posinf=0.0).max(initial=0.0))
        floor = 1e-9 * max(1.0, float(np.abs(outputs).max(initial=0.0)))
        return min(self.atol, max(self.atol * scale, floor))


class Engine:
    """One recorded forward, and its backward as a function of the cotangent (all outputs' elements in one row)."""

    def __init__(self, problem: Problem, watch: Any = None):
        self.problem, self.steps = problem, watch
        self.outs = problem.outputs(watch)
        self.edges = [leaf.edge for leaf in problem.leaves]
        self.row = np.concatenate([np.array(o._data, dtype=np.float64).reshape(-1) for o in self.outs])
        ends = np.cumsum([o._data.size for o in self.outs])
        self.parts = [slice(end - o._data.size, end) for end, o in zip(ends, self.outs, strict=True)]
        self.live = [k for k, o in enumerate(self.outs) if o._requires_grad]

    def pull(self, u: Array) -> list[Array | None]:
        """uᵀJ for each leaf; None where no gradient reached it."""
        seeds = [u[self.parts[k]].reshape(self.outs[k]._data.shape).astype(self.outs[k]._data.dtype) for k in self.live]
        kept = [s.copy() for s in seeds]
        found = graph.grad(
            [self.outs[k] for k in self.live],
            [leaf.tensor for leaf in self.problem.leaves],
            [graph._wrap(s) for s in seeds],
            retain_graph=True,
            allow_unused=True,
        )
        if not all(np.array_equal(s, k) for s, k in zip(seeds, kept, strict=True)):
            raise GradcheckError(
                f"{self.problem.name}: backward wrote into the gradient that it was given; it must leave it as it is, since "
                "others use it too",
                diagnosis="writes into its gradient",
            )
        return [None if f is None else np.array(f._data, dtype=np.float64) for f in found]

    def uses(self, i: int, u: Array) -> list[tuple[str, Array]]:
        """The gradient of leaf i through each of its uses alone, and which operation that is."""
        edge, leaf = self.edges[i], self.problem.leaves[i]
        nodes, stack = set(), [self.outs[k]._node for k in self.live]
        while stack:
            node = stack.pop()
            if node is not None and node not in nodes:
                nodes.add(node)
                stack.extend(e[0] for e in node.edges if isinstance(e, tuple))
        places = [
            (n, j) for n in sorted(nodes, key=lambda n: n.number) for j, e in enumerate(n.edges) if _is(e, edge)
        ]  # fmt: skip
        if not 2 <= len(places) <= 8:
            return []
        before = {n: n.edges for n, _ in places}
        names = {step.node: f"{step.name} at {step.line}" for step in self.steps or () if step.node is not None}
        results: list[tuple[str, Array]] = []
        try:
            for node, j in places:
                for n, edges in before.items():
                    n.edges = tuple(None if _is(e, edge) and (n, q) != (node, j) else e for q, e in enumerate(edges))
                found = self.pull(u)[i]
                results.append((names.get(node, node.op.name), np.zeros(leaf.shape) if found is None else found))
        finally:
            for n, edges in before.items():
                n.edges = edges
        return results


def _is(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, tuple) and isinstance(b, tuple) and a[0] is b[0] and a[1] == b[1])


@dataclass
class Finding:
    """What the examination ends with when the gradient does not pass."""

    kind: str  # "wrong", "kink", "jump" or "float32"
    block: Block
    blocks: list[Block]
    leaf: int
    output: int
    row: int  # within the output
    column: int
    analytic: float
    numeric: float
    decades: list[tuple[float, float]]
    wrong: int = 0  # entries of the block that disagree
    right: tuple[str, ...] = ()  # labels of the leaves whose gradient agrees
    sampled: bool = False
    mixed: bool = False  # seen with a random incoming gradient only


def start(problem: Problem) -> Engine:
    """The forward and its basic checks: deterministic, connected, finite, of a backward that can be repeated."""
    state = rng.get_rng_state()
    engine = Engine(problem)
    moved = rng.get_rng_state() != state
    name = problem.name
    again = problem.values()
    if not _equal(engine.row, again) and not _close(engine.row, again):
        hint = " (it draws random numbers: call tg.manual_seed inside it, or use eval())" if moved else ""
        raise GradcheckError(
            f"{name}: the function is not deterministic: two calls gave different values{hint}",
            diagnosis="not deterministic",
        )
    if not engine.live:
        raise GradcheckError(
            f"{name}: no output depends on an input that requires grad; was the graph cut by detach() or numpy()?",
            diagnosis="zero gradient",
        )
    for k, o in enumerate(engine.outs):
        if not np.isfinite(o._data).all():
            raise GradcheckError(f"{name}: output {k} has values that are not finite, so it has no gradient to check")
    u = np.random.default_rng(3).standard_normal(engine.row.shape)
    first = engine.pull(u)
    for leaf, a, b in zip(problem.leaves, first, engine.pull(u), strict=True):
        if a is None or b is None or _equal(a, b):
            continue
        if np.abs(a - b).max() > 1e-9 * np.abs(a).max():
            raise GradcheckError(
                f"{name}: the backward is not deterministic: for one and the same cotangent two passes gave {leaf.label} "
                "different gradients; does a backward change what it saved?",
                diagnosis="not deterministic",
            )
    return engine


def _close(a: Array, b: Array) -> bool:
    """Equal but for the last digits: sums in another order, not another function."""
    if a.shape != b.shape or not np.isfinite(a).all() or not np.isfinite(b).all():
        return False
    return bool(np.abs(a - b).max(initial=0.0) <= 1e-12 * np.abs(a).max(initial=0.0))


def _equal(a: Array, b: Array) -> bool:
    return a.shape == b.shape and np.array_equal(a, b, equal_nan=True)


# -- fast: random projections in and out -------------------------------------------------------------------------------


def projections_agree(problem: Problem, engine: Engine, tolerance: Tolerance) -> bool:
    """Whether uᵀ J v is the same both ways, for three random u and v for each leaf and output."""
    generator = np.random.default_rng(0)
    for _ in range(3):
        u = generator.standard_normal(engine.row.shape)
        pulled = {}
        for k in engine.live:
            only = np.zeros_like(u)
            only[engine.parts[k]] = u[engine.parts[k]]
            pulled[k] = engine.pull(only)
        for i, leaf in enumerate(problem.leaves):
            if not leaf.size:
                continue
            v = generator.standard_normal(leaf.shape) * np.maximum(1.0, np.abs(leaf.value))
            move = Move(problem, leaf, direction=v)
            slope = central(move, tolerance.eps)
            ladder = None
            for k in engine.live:
                part = engine.parts[k]
                g = pulled[k][i]
                a = 0.0 if g is None else float((g * v).sum())
                n = float(u[part] @ slope[part])
                outputs = np.array(float(np.abs(u[part]) @ np.abs(engine.row[part])))
                allowed = tolerance.absolute(np.array(a), np.array(n), outputs) + tolerance.rtol * abs(n)
                if abs(a - n) <= allowed:
                    continue
                if float32_operation(problem) is not None:
                    return False
                ladder = ladder or Ladder(move, engine.row, magnitude(problem))
                n = float(u[part] @ ladder.slope[part])
                doubt = float(np.abs(u[part]) @ ladder.doubt[part])
                if not abs(a - n) <= allowed + doubt or doubt > 0.1 * max(abs(a), abs(n)):
                    return False
    return True


# -- full: every element -----------------------------------------------------------------------------------------------


def examine(problem: Problem, engine: Engine, tolerance: Tolerance, sample: bool = False) -> Finding | None:
    """Compare every element (of a sample, where there are very many), and give the worst that is really wrong."""
    mix = None
    base = engine.row
    shapes = [o._data.shape for o in engine.outs]
    parts = engine.parts
    if sample and base.size > LARGE:  # three random combinations of all outputs
        mix = np.random.default_rng(5).standard_normal((3, base.size))
        for k in range(len(engine.outs)):
            if k not in engine.live:
                mix[:, parts[k]] = 0
        shapes, parts = [(3,)], [slice(0, 3)]
    mixed = _mix(base, mix)
    count = mixed.size

    def pull(u: Array) -> list[Array | None]:
        return engine.pull(u if mix is None else u @ mix)

    analytic = [np.zeros((count, leaf.size)) for leaf in problem.leaves]
    reached = [False] * len(problem.leaves)
    eye = np.eye(count) if count else np.zeros((0, 0))
    live = [m for k in (engine.live if mix is None else [0]) for m in range(*parts[k].indices(count))]
    for m in live:
        for i, found in enumerate(pull(eye[m])):
            if found is not None:
                analytic[i][m], reached[i] = found.reshape(-1), True
    numeric = []
    for leaf in problem.leaves:
        columns = np.full((count, leaf.size), np.nan)
        for c in _columns(leaf.size, sample):
            columns[:, c] = _mix(central(Move(problem, leaf, c), tolerance.eps), mix)
        numeric.append(columns)

    # the elements that disagree at this step, and a closer look at them, the worst first
    suspects: list[tuple[float, int, int]] = []
    absolute = [np.zeros((count, leaf.size)) for leaf in problem.leaves]
    bounds = [np.zeros((count, leaf.size)) for leaf in problem.leaves]
    for i, leaf in enumerate(problem.leaves):
        for k in range(len(shapes)):
            part = parts[k]
            if mix is None and k not in engine.live:
                analytic[i][part] = numeric[i][part] = 0.0
            a, n = analytic[i][part], numeric[i][part]
            absolute[i][part] = tolerance.absolute(a, n, mixed[part])
            bounds[i][part] = absolute[i][part] + tolerance.rtol * np.abs(n)
        known = np.zeros(leaf.size, bool)
        known[list(_columns(leaf.size, sample))] = True
        with np.errstate(invalid="ignore"):
            excess = np.abs(analytic[i] - numeric[i]) / bounds[i]
        excess = np.where(np.isfinite(excess), excess, np.inf)
        worst = excess.max(0, initial=0.0)
        suspects += [(float(worst[c]), i, int(c)) for c in np.flatnonzero((worst > 1) & known)]
    confirmed: list[tuple[float, int, int, int, Ladder]] = []
    blunt: list[tuple[float, int, int, int, Ladder, str]] = []
    rounded: list[tuple[int, int, int, Ladder]] = []
    float32, size = (float32_operation(problem), magnitude(problem)) if suspects else (None, 0.0)
    for _, i, c in sorted(suspects, key=lambda s: -s[0]):
        move = Move(problem, problem.leaves[i], c)
        ladder = Ladder(move, base, size, _EPSILON[np.float64 if float32 is None else np.float32])
        if float32 is not None:
            if ladder.looks_rounded(base):
                m = int(np.argmax(np.nan_to_num(np.abs(analytic[i][:, c] - numeric[i][:, c]) / bounds[i][:, c])))
                rounded.append((i, c, m, ladder))
            else:
                ladder = Ladder(move, base, size)
        quick = np.abs(analytic[i][:, c] - numeric[i][:, c])
        slope, doubt = _mix(ladder.slope, mix), ladder.doubt if mix is None else np.abs(mix) @ ladder.doubt
        slope = np.where(np.isfinite(doubt), slope, numeric[i][:, c])
        doubt = np.where(np.isfinite(doubt), doubt, 0.0)
        with np.errstate(invalid="ignore"):
            difference = np.abs(analytic[i][:, c] - slope)
            limit = absolute[i][:, c] + tolerance.rtol * np.abs(slope)
            bad = ~(difference <= limit + doubt)
            open_ = ~bad & (quick > limit) & (doubt > 0.1 * np.abs(slope))  # no step was good enough to tell
        for m in map(int, np.flatnonzero(bad | open_)):
            off = difference if bad[m] else quick
            kink = ladder.kink(m, float(off[m])) if mix is None else None
            excess_m = float(np.nan_to_num(off[m] / limit[m], nan=np.inf))
            if kink is not None:
                blunt.append((excess_m, i, c, m, ladder, kink))
            elif bad[m]:
                confirmed.append((excess_m, i, c, m, ladder))
        if rounded:
            break
        numeric[i][:, c], bounds[i][:, c] = slope, limit
        if len({(i, c) for _, i, c, _, _ in confirmed}) >= CONFIRMED:
            break
    bent = (
        None if confirmed or blunt or rounded or mix is not None else _not_linear(problem, engine, analytic, tolerance)
    )
    if not confirmed and not blunt and not rounded and bent is None:
        if count and not any(reached) and any(leaf.size for leaf in problem.leaves):
            raise GradcheckError(
                f"{problem.name}: the outputs do not change with any of the inputs, and no gradient reaches these; does the "
                "function use a Tensor from outside in the place of its argument?",
                diagnosis="zero gradient",
            )
        return None

    def blocks(k: int) -> list[Block]:
        part = parts[k]
        word = "the output" if len(shapes) == 1 else f"output {k}"
        found = [
            Block(leaf.label, shapes[k], leaf.shape, analytic[i][part], numeric[i][part], word, not reached[i])
            for i, leaf in enumerate(problem.leaves)
        ]
        for i, block in enumerate(found):
            block.siblings = [b for b in found if b is not block]
            block.x = problem.leaves[i].value.reshape(-1).copy()
            if mix is None:
                block.y = base[part]
                block.vjp, block.uses = _probe(engine, i, part), _uses(engine, i, part)
                block.others = [
                    Block(
                        block.label,
                        shapes[o],
                        block.in_shape,
                        analytic[i][parts[o]],
                        numeric[i][parts[o]],
                        f"output {o}",
                    )
                    for o in range(len(shapes))
                    if o != k
                ]
        return found

    if bent is not None:
        i, m, c, value, wanted = bent
        k = next(k for k, part in enumerate(parts) if part.start <= m < part.stop)
        every = blocks(k)
        right = tuple(leaf.label for j, leaf in enumerate(problem.leaves) if j != i)
        return Finding("wrong", every[i], every, i, k, m - parts[k].start, c, value, wanted, [], 0, right, mixed=True)
    if rounded and not confirmed:
        kind, (i, c, m, ladder) = "float32", rounded[0]
    elif confirmed:
        kind, (_, i, c, m, ladder) = "wrong", max(confirmed, key=lambda f: f[0])
    else:
        _, i, c, m, ladder, kind = max(blunt, key=lambda f: f[0])
    k = next(k for k, part in enumerate(parts) if part.start <= m < part.stop)
    every = blocks(k)
    off = np.abs(analytic[i][parts[k]] - numeric[i][parts[k]]) > bounds[i][parts[k]]
    guilty = {j for _, j, _, _, _ in confirmed} | {j for _, j, _ in suspects}
    return Finding(
        kind,
        every[i],
        every,
        i,
        k,
        m - parts[k].start,
        c,
        float(analytic[i][m, c]),
        float(numeric[i][m, c]),
        ladder.decades(m) if mix is None else [],
        int(off.sum()),
        tuple(leaf.label for j, leaf in enumerate(problem.leaves) if j not in guilty),
        sample and (mix is not None or problem.leaves[i].size > LARGE),
    )


def _not_linear(
    problem: Problem, engine: Engine, analytic: list[Array], tolerance: Tolerance
) -> tuple[int, int, int, float, float] | None:
    """Where the gradient for a random incoming one is not what those for its elements add up to: (leaf, row, column, values)."""
    u = np.zeros(engine.row.shape)
    for k in engine.live:
        part = engine.parts[k]
        u[part] = np.random.default_rng(10 + k).standard_normal(part.stop - part.start)
    worst = None
    for i, found in enumerate(engine.pull(u)):
        wanted = u @ analytic[i]
        g = np.zeros_like(wanted) if found is None else found.reshape(-1)
        size = np.abs(u) @ np.abs(analytic[i])  # what rounding is measured by, with float32 inside as well
        with np.errstate(invalid="ignore"):
            allowed = 1e-4 * size.max(initial=0.0) + tolerance.absolute(g, wanted, engine.row)
            excess = np.nan_to_num(np.abs(g - wanted) - allowed)
        if excess.size and excess.max() > 0:
            c = int(excess.argmax())
            worst = worst or (i, int(np.abs(analytic[i][:, c] * u).argmax()), c, float(g[c]), float(wanted[c]))
    return worst


def _mix(row: Array, mix: Array | None) -> Array:
    return row if mix is None else np.asarray(mix @ row)


def _columns(size: int, sample: bool) -> Any:
    if not sample or size <= LARGE:
        return range(size)
    return np.random.default_rng(6).choice(size, 256, replace=False)


def _whole(engine: Engine, part: slice, u: Array) -> Array:
    whole = np.zeros(engine.row.shape)
    whole[part] = u
    return whole


def _probe(engine: Engine, i: int, part: slice) -> Any:
    def vjp(u: Array) -> Array:
        found = engine.pull(_whole(engine, part, u))[i]
        return np.zeros(engine.problem.leaves[i].shape) if found is None else found

    return vjp


def _uses(engine: Engine, i: int, part: slice) -> Any:
    return lambda u: engine.uses(i, _whole(engine, part, u))


def check(problem: Problem, tolerance: Tolerance, mode: str) -> tuple[Finding, Engine] | None:
    """The whole check of one problem: None if it passes. Raises GradcheckError where there is nothing to compare."""
    with modes.enable_grad(), np.errstate(all="ignore"):
        engine = start(problem)
        if mode == "fast" and projections_agree(problem, engine, tolerance):
            return None
        engine = Engine(problem)
        finding = examine(problem, engine, tolerance, sample=mode == "fast")
        return None if finding is None else (finding, engine)
