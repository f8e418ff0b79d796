"""The text of a failed check: where, by how much, how the error behaves, what it looks like, and which operation it is."""

from __future__ import annotations

import numpy as np

from .between import Gap
from .blame import Blame
from .compare import Finding, Tolerance
from .diagnosis import diagnose
from .problem import GradcheckError, Problem
from .walk import Step, source


def _place(shape: tuple[int, ...], flat: int) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()


def _index(shape: tuple[int, ...], flat: int) -> str:
    place = _place(shape, flat)
    return f"[{', '.join(map(str, place))}]" if place else ""


def _named(axes: tuple[str, ...], shape: tuple[int, ...], flat: int) -> str:
    """`B = 0, T = 2, d_model = 5`"""
    names = axes if len(axes) == len(shape) else tuple(f"axis {i}" for i in range(len(shape)))
    return ", ".join(f"{name} = {i}" for name, i in zip(names, _place(shape, flat), strict=True))


def _placed(step: Step) -> str:
    inside = f" in module {step.module}" if step.module else ""
    return f"{step.name}{inside}, called at {step.line}"


def _called(step: Step) -> str:
    text = source(step.line)
    return _placed(step) + (f"\n                 {text}" if text else "")


def behaviour(errors: list[tuple[float, float]], analytic: float, kind: str) -> str:
    """What the errors at steps from large to small say: (step, error)."""
    if kind == "kink":
        return "it does not shrink with eps: the function bends at this very point"
    if kind == "jump":
        return "the slope grows as 1/eps: the function jumps at this very point"
    if kind == "float32":
        return "it grows as 1/eps from far too large a value: the rounding of float32 numbers"
    if kind == "cancellation":
        return "it grows as 1/eps from far too large a value: the rounding of large numbers that cancel"
    finite = [e for h, e in errors if np.isfinite(e) and 1e-8 < h < 1e-1]
    if finite and min(finite) > 0 and max(finite) < 1.5 * min(finite):
        return "flat: it does not depend on eps, so the gradient is wrong, not the differences"
    lowest = min(finite, default=0.0)
    if lowest > 0.01 * abs(analytic):
        return "it never falls below a floor: truncation (eps^2) and rounding (1/eps) on its sides, a wrong rule at its bottom"
    return "it changes with eps: truncation falls as eps^2, rounding grows as 1/eps"


def _decades(finding: Finding) -> list[str]:
    if not finding.decades:
        return []
    errors = [(h, abs(slope - finding.analytic)) for h, slope in finding.decades]
    lines = ["  error by eps   " + "  ".join(f"{h:>7.0e}" for h, _ in errors)]
    lines.append("                 " + "  ".join(f"{e:>7.1e}" for _, e in errors))
    lines.append(f"                 {behaviour(errors, finding.analytic, finding.kind)}")
    return lines


CUT = "the graph is cut"
SIMPLE = {
    "cancellation": (
        "cancellation: each rule is right, but digits are lost between large numbers that cancel, in the gradient as in the "
        "differences; compute it in another way (expm1, log1p, logsumexp), or check it at another point"
    ),
    "kink": (
        "a kink at this point: the slopes on its two sides differ, so there is no gradient to compare with; the rule may be "
        "right; check it at another point"
    ),
    "jump": "a jump at this point: the function is not continuous here, so there is no gradient; check it at another point",
    "float32": (
        "float32 rounding: part of the function computes in float32, which keeps 7 digits, so differences with this eps "
        "prove nothing; keep float64 throughout"
    ),
}


def failure(
    problem: Problem, finding: Finding, found: Blame, tolerance: Tolerance, float32: Step | None
) -> GradcheckError:
    """The error for a finding, with its whole report."""
    leaf = problem.leaves[finding.leaf]
    block = finding.block
    a, n = finding.analytic, finding.numeric
    local = found.finding
    gap = found.gaps[0] if found.gaps else None
    step = float32 or found.step or (gap.step if gap else None)

    sentences = [SIMPLE[finding.kind]] if finding.kind in SIMPLE else []
    if not sentences:
        sentences = diagnose(block if local is None else local.block)  # further on, the pattern is blurred
    if gap is not None and finding.kind == "wrong":  # all else that fits is a consequence
        start = gap.diagnosis
        if start == CUT:
            start = f"{'one of several uses is missing' if block.analytic.any() else 'zero gradient'}: {CUT}"
        sentences = [f"{start}: {gap.place}{f' {gap.step.name}' if gap.step else ''} {gap.text}"]
    if found.spoiled:
        sentences = [f"a backward that spoils: {found.spoiled}", *sentences]
    if not sentences:
        sentences = ["no known pattern: compare the rule with the formula, term by term"]
    diagnosis = sentences[0].partition(":")[0]

    what = "the gradient is wrong" if finding.kind == "wrong" else "the gradient cannot be judged here"
    lines = [f"{problem.name}: {what}: {leaf.label}: {diagnosis}{_culprit(step, found, gap)}"]
    ratio = f", ratio {a / n:.6g}" if n and a else ""
    if block.missing:
        ratio += " (no gradient reached it at all)"
    lines.append(
        f"  worst element  {leaf.label}{_index(leaf.shape, finding.column)}: analytic (backward) {a:.10g}, numeric "
        f"(differences) {n:.10g}, "
        f"difference {a - n:.3g}{ratio}"
    )
    where = f"{leaf.label}, shape {leaf.shape}"
    if leaf.shape:
        where += f", at {_named(leaf.axes, leaf.shape, finding.column)}"
    if finding.sampled:
        where += "; found in a random sample of its elements"
    elif finding.mixed:
        where += "; for a random incoming gradient (numeric: what single incoming gradients add up to)"
    else:
        where += f"; in the gradient of output {finding.output}{_index(block.out_shape, finding.row)}"
    lines.append(f"  where          {where}")
    if not finding.mixed:
        wrong = f"{finding.wrong} of {block.analytic.size} entries of this Jacobian are off"
        lines.append(f"  how much       {wrong}" + (f"; right: {_listed(finding.right)}" if finding.right else ""))
    lines.append(f"  diagnosis      {sentences[0]}")
    lines += [f"                 or: {s}" for s in sentences[1:]]
    lines += _operation(finding, found, float32)
    lines += _decades(finding)
    lines.append(f"  (eps {tolerance.eps:g}, atol {tolerance.atol:g}, rtol {tolerance.rtol:g})")
    return GradcheckError(
        "\n".join(lines),
        diagnosis=diagnosis,
        operation=None if step is None or gap is not None and found.step is None else step.name,
        line=step.line if step else None,
    )


def _culprit(step: Step | None, found: Blame, gap: Gap | None) -> str:
    """The end of the first line: who did it."""
    if gap is not None and found.step is None:
        place = f"{gap.place} {_placed(gap.step)}" if gap.step else gap.place
        return f"; {'the graph is cut at' if gap.diagnosis == CUT else 'look at'} {place}"
    return f"; by {_placed(step)}" if step is not None else ""


def _operation(finding: Finding, found: Blame, float32: Step | None) -> list[str]:
    """Which operation it is, and how its own rule fails; or what happens between those that are right."""
    local = found.finding
    if float32 is not None:
        return [f"  operation      {_called(float32)}"]
    if found.spoiled and found.step is not None:
        return [f"  operation      {_called(found.step)}"]
    if found.step is not None and local is not None:
        lines = [f"  operation      {_called(found.step)}"]
        if local.kind == "wrong":
            own = f"its own rule for {local.block.label} is wrong: analytic {local.analytic:.6g}, numeric {local.numeric:.6g}"
            own += f" at {local.block.label}{_index(local.block.in_shape, local.column)}"
            rule = found.step.rule(found.argument)
            own += f"; the rule: {rule}" if rule else ""
            rest = f"; {_right(found.position, 'before it')}" if found.position else ""
            lines.append(f"                 {own}{rest}")
        return lines
    if finding.kind not in ("wrong", "cancellation") or not (found.checked or found.gaps):
        return []
    none = (
        f"none: {_right(found.checked, 'on the way')} by itself" if found.checked else "none: no operation leads to it"
    )
    if not found.gaps:
        return [
            f"  operation      {none}",
            "                 so something between them changes the value or the gradient",
        ]
    lines = [f"  operation      {none}; look at"]
    for gap in found.gaps[:3]:
        lines.append(
            f"                 {gap.place} {_called(gap.step)}" if gap.step else f"                 {gap.place}"
        )
    if finding.kind == "cancellation":
        lines.append(f"                 which {found.gaps[0].text}")
    return lines


def _right(n: int, where: str) -> str:
    return f"the one operation {where} is right" if n == 1 else f"each of the {n} operations {where} is right"


def _listed(labels: tuple[str, ...]) -> str:
    return ", ".join(labels) if len(labels) <= 4 else f"{', '.join(labels[:3])} and {len(labels) - 3} others"
