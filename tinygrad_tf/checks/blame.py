"""Which operation is at fault: every operation on the way is checked by itself, with the values it had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .. import graph, modes
from .between import Gap, cancellation, gaps
from .compare import Engine, Finding, Tolerance, check
from .diagnosis import Block
from .problem import GradcheckError, Problem
from .walk import Step, Watch, watched


@dataclass
class Blame:
    """The first operation whose own rule is wrong, with what its own check found; or what is wrong between them."""

    step: Step | None = None
    finding: Finding | None = None
    checked: int = 0  # operations on the way
    position: int = 0
    argument: int = 0  # number of the argument of the step
    gaps: list[Gap] = field(default_factory=list)
    spoiled: str = ""  # what the operation's backward does that none may: writes into what it is given


def blame(problem: Problem, finding: Finding, tolerance: Tolerance) -> Blame:
    """Walk the recorded graph from the inputs on, and check each operation that a gradient of the faulty leaf comes through."""
    watch = Watch(problem.fn)
    with modes.enable_grad(), watch.follow():
        engine = Engine(problem, watch)
    leaf = problem.leaves[finding.leaf].tensor
    on_the_way = graph._leading_nodes([engine.outs[k] for k in engine.live], {graph._key(leaf)})
    steps = [step for step in watch if step.node in on_the_way]
    for position, step in enumerate(steps):
        found = _alone(step, tolerance)
        if isinstance(found, GradcheckError):
            return Blame(step, None, len(steps), position, spoiled=str(found).partition(": ")[2])
        if found is not None and (found.kind == "wrong" or found.kind == finding.kind):
            return Blame(step, found, len(steps), position, _argument(step, found.block.label))
    found_gaps = gaps(problem) if finding.kind == "wrong" else []
    if finding.kind == "wrong" and not found_gaps and not finding.sampled and not finding.mixed:
        lost = cancellation(problem, finding, tolerance)
        if lost is not None:
            finding.kind, found_gaps = "cancellation", [lost]
    return Blame(None, None, len(steps), 0, 0, found_gaps)


def _argument(step: Step, label: str) -> int:
    words = [step.word(i) for i in range(len(step.args))]
    return words.index(label.partition(".")[0]) if label.partition(".")[0] in words else 0


def spoiler(problem: Problem, tolerance: Tolerance) -> Step | None:
    """The first operation whose backward changes what it saved or was given."""
    return next((step for step in watched(problem) if isinstance(_alone(step, tolerance), GradcheckError)), None)


def _alone(step: Step, tolerance: Tolerance) -> Finding | GradcheckError | None:
    inputs = step.inputs()
    words = [step.word(i) for i in range(len(inputs))]
    try:
        with Problem(step.call, inputs, step.name, words) as problem:
            result = check(problem, tolerance, "fast")
            if result is None:
                return None
            found = result[0]
            if step.function is not None:
                found.block.uses = _uses_inside(step, found.leaf, found.block, words)
            return found
    except GradcheckError as error:
        return error if error.diagnosis in ("not deterministic", "writes into its gradient") else None
    except Exception:  # it cannot be run by itself; whatever that is, it must not hide what was found
        return None


def _uses_inside(step: Step, leaf: int, block: Block, words: list[str]) -> Any:
    """How a user's Function uses its input, if its forward is made of operations."""
    from ..function import Context, _FunctionOp

    inputs = step.inputs()
    needs = tuple(isinstance(a, graph.TensorBase) and a._requires_grad for a in inputs)

    def forward(*args: Any) -> Any:
        return step.function.forward(Context(_FunctionOp(step.function), needs), *args)

    try:
        with Problem(forward, inputs, step.name, words) as problem, modes.enable_grad():
            engine = Engine(problem, Watch())
            if not engine.live or engine.row.size != block.analytic.shape[0]:
                return None
            return lambda u: engine.uses(leaf, u)
    except Exception:  # a forward that cannot be recorded, on numpy for instance
        return None
