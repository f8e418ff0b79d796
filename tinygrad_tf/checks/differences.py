"""Finite differences: a quick one for every element, and a ladder of steps for those that need a closer look."""

from __future__ import annotations

import numpy as np

from ..graph import Array
from .problem import Leaf, Problem

_EPSILON = float(np.finfo(np.float64).eps)
LADDER = 10.0 ** -np.arange(1.0, 10.01, 0.5)  # from 1e-1 to 1e-10


class Move:
    """A way to nudge a leaf: along one element, or along a direction. `move(h)` gives the outputs at that step."""

    def __init__(self, problem: Problem, leaf: Leaf, index: int | None = None, direction: Array | None = None):
        self.problem, self.leaf = problem, leaf
        self.place = None if index is None else np.unravel_index(index, leaf.shape)
        self.direction = direction
        here = 1.0 if self.place is None else abs(float(leaf.value[self.place]))
        self.scales = (1.0,) if here == 0 or 0.3 < here < 3 else (1.0, here)

    def __call__(self, h: float) -> tuple[Array, float]:
        """The outputs at the step h, and the step that was really made (x + h is rounded)."""
        value = self.leaf.value
        if self.place is None:
            before = value.copy()
            try:
                value += h * self.direction  # type: ignore[operator]
                return self.problem.values(), h
            finally:
                np.copyto(value, before)
        element = value[self.place]
        try:
            value[self.place] = element + h
            return self.problem.values(), float(value[self.place] - element)
        finally:
            value[self.place] = element


def central(move: Move, eps: float) -> Array:
    """(f(x + h) - f(x - h)) / 2h of every output, with h = eps times the element where that is above 1."""
    h = eps * max(1.0, *move.scales)
    (plus, up), (minus, down) = move(h), move(-h)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        return (plus - minus) / (up - down)


class Ladder:
    """Central and one-sided differences of every output at steps from large to small.

    `slope` is the central difference where three neighbouring steps agree best, and `doubt` how well they agree, with
    the outputs' own rounding. Two scales are tried: steps relative to 1 and relative to the element.
    """

    def __init__(self, move: Move, base: Array):
        self.steps, self.central, self.gap, self.noise = [], [], [], []  # type: ignore[var-annotated]
        self.slope = np.zeros(base.shape)
        self.doubt = np.full(base.shape, np.inf)
        for scale in move.scales:
            steps, slopes, gaps, noises = [], [], [], []
            for h in LADDER * scale:
                (plus, up), (minus, down) = move(h), move(-h)
                if not up > 0 > down or up > 2 * h:
                    continue  # x is so large that the step is lost
                with np.errstate(invalid="ignore", over="ignore"):
                    steps.append(float(up - down) / 2)
                    slopes.append((plus - minus) / (up - down))
                    gaps.append((plus - base) / up - (base - minus) / -down)
                    noises.append(4 * _EPSILON * np.maximum(np.abs(plus), np.abs(minus)) / (up - down))
            if len(slopes) < 3:
                continue
            c = np.stack(slopes)
            with np.errstate(invalid="ignore"):
                change = np.abs(np.diff(c, axis=0))
                doubt = np.maximum(change[1:], change[:-1]) + np.stack(noises)[1:-1]
            doubt = np.where(np.isfinite(doubt), doubt, np.inf)
            best = doubt.argmin(0)
            columns = np.arange(base.size)
            better = doubt[best, columns] < self.doubt
            self.slope = np.where(better, c[1:-1][best, columns], self.slope)
            self.doubt = np.where(better, doubt[best, columns], self.doubt)
            self.steps.append(np.array(steps))
            self.central.append(c)
            self.gap.append(np.stack(gaps))
            self.noise.append(np.stack(noises))

    def kink(self, m: int, difference: float) -> str | None:
        """ "kink" or "jump" if output m has one at this very point: its two sides differ however small the step."""
        for c, gap, noise, steps in zip(self.central, self.gap, self.noise, self.steps, strict=True):
            clear = np.flatnonzero(np.isfinite(gap[:, m]) & (noise[:, m] < 0.05 * abs(difference)))
            if len(clear) < 4:
                continue
            last = clear[-4:]
            g = np.abs(gap[last, m])
            if g.min() > 0.3 * abs(difference) and g.max() < 1.2 * g.min():
                return "kink"
            jump = np.abs(c[last, m] * steps[last])
            if jump.min() > 0 and jump.max() < 1.2 * jump.min() and abs(c[last[-1], m]) > 10 * abs(c[last[0], m]):
                return "jump"
        return None

    def decades(self, m: int) -> list[tuple[float, float]]:
        """(step, slope of output m) for each decade."""
        return [(float(h), float(c[m])) for h, c in zip(self.steps[0][::2], self.central[0][::2], strict=True)]

    def looks_rounded(self, base: Array) -> bool:
        """Whether some output is noisy as float32 is: at small steps the error grows as 1/eps, from about 1e-8 of it."""
        for c, steps in zip(self.central, self.steps, strict=True):
            small = steps < 3e-6 * max(1.0, steps[0] * 10)
            with np.errstate(invalid="ignore"):
                noise = np.abs(c[small] - self.slope) * steps[small, None]
            if noise.size and (np.nan_to_num(np.median(noise, 0)) > 3e-10 * np.abs(base)).any():
                return True
        return False
