"""Finite differences: a quick one for every element, and a ladder of steps for those that need a closer look."""

from __future__ import annotations

import numpy as np

from ..graph import Array
from .problem import Leaf, Problem

_EPSILON = float(np.finfo(np.float64).eps)
LADDER = 10.0 ** -np.arange(1.0, 11.51, 0.5)  # from 1e-1 to 3e-12


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


def _apart(steps: list[float]) -> list[float]:
    """Those that are well below the one before: two steps that are almost the same agree on anything."""
    kept = steps[:1]
    for h in steps[1:]:
        if h < 0.8 * kept[-1]:
            kept.append(h)
    return kept


class Ladder:
    """Central and one-sided differences of every output at steps from large to small, relative to 1 and to the element.

    `slope` is the central difference at the smallest steps where three neighbours agree, and `doubt` how well they agree,
    with the rounding of numbers of size `magnitude`. Larger steps may agree as well, on the far side of a kink.
    """

    def __init__(self, move: Move, base: Array, magnitude: float, epsilon: float = _EPSILON):
        steps, slopes, gaps, noises = [], [], [], []
        self.is_decade = []
        for h in _apart(sorted((h * scale for scale in move.scales for h in LADDER), reverse=True)):
            (plus, up), (minus, down) = move(h), move(-h)
            if not up > 0 > down or up > 2 * h:
                continue  # x is so large that the step is lost
            with np.errstate(invalid="ignore", over="ignore"):
                steps.append((up - down) / 2)
                slopes.append((plus - minus) / (up - down))
                gaps.append((plus - base) / up - (base - minus) / -down)
                size = np.maximum(np.maximum(np.abs(plus), np.abs(minus)), magnitude)
                noises.append(4 * epsilon * size / (up - down))
            self.is_decade.append(bool(np.isclose(h, LADDER[::2], rtol=0.05, atol=0).any()))
        self.steps = np.array(steps)
        self.central, self.gap, self.noise = np.stack(slopes), np.stack(gaps), np.stack(noises)
        self.magnitude = magnitude
        self.slope, self.doubt = self._limit()

    def _limit(self) -> tuple[Array, Array]:
        c = self.central
        with np.errstate(invalid="ignore"):
            change = np.abs(np.diff(c, axis=0))
            doubt = np.maximum(change[1:], change[:-1]) + self.noise[1:-1]
        doubt = np.where(np.isfinite(doubt), doubt, np.inf)
        inner = np.where(np.isfinite(c[1:-1]), c[1:-1], 0.0)
        columns = np.arange(c.shape[1])
        surest = doubt.argmin(0)
        clear = np.where(doubt <= 1e-3 * np.abs(inner), np.abs(inner), 0.0).max(0)  # what a slope of 0 is measured by
        scale = np.maximum(np.abs(inner), 0.1 * clear)
        agree = doubt <= 1e-3 * scale
        smallest = len(inner) - 1 - np.argmax(agree[::-1], axis=0)  # of those that agree
        anchor = np.where(agree.any(0), smallest, surest)
        near = np.abs(inner - inner[anchor, columns]) <= 2e-3 * scale[anchor, columns]
        best = np.where(near & agree | (np.arange(len(inner))[:, None] == anchor), doubt, np.inf).argmin(0)
        return inner[best, columns], doubt[best, columns]

    def kink(self, m: int, difference: float) -> str | None:
        """ "kink" or "jump" if output m has one at this very point: its two sides differ however small the step."""
        gap, noise = self.gap[:, m], self.noise[:, m]
        last = np.flatnonzero(np.isfinite(gap) & (noise < 0.05 * abs(difference)))[-4:]
        if len(last) < 4:
            return None
        g = np.abs(gap[last])
        if g.min() > 0.3 * abs(difference) and g.max() < 1.2 * g.min():
            return "kink"
        slopes = np.abs(self.central[last, m])
        jump = slopes * self.steps[last]
        if jump.min() > 0 and jump.max() < 1.2 * jump.min() and slopes[-1] > 10 * slopes[0]:
            return "jump"
        return None

    def decades(self, m: int) -> list[tuple[float, float]]:
        """(step, slope of output m) for each decade."""
        rows = zip(self.steps, self.central[:, m], self.is_decade, strict=True)
        return [(float(h), float(c)) for h, c, decade in rows if decade]

    def looks_rounded(self, base: Array) -> bool:
        """Whether some output is noisy as float32 is: at small steps the error grows as 1/eps, from about 1e-8 of it."""
        small = (self.steps < 3e-6) & np.array(self.is_decade)
        with np.errstate(invalid="ignore"):
            noise = np.abs(self.central[small] - self.slope) * self.steps[small, None]
        size = np.maximum(np.abs(base), self.magnitude)
        return bool(noise.size and (np.nan_to_num(np.median(noise, 0)) > 3e-10 * size).any())
