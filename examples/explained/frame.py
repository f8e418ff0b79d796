"""What all experiments share: thresholds that stand before the measurement, seeds, a table, a verdict.

An experiment is a file with a docstring (its first line the title; then the paragraphs "Claim.", "Expected." and "Control."),
the checks with their thresholds, a function that measures with one seed, and one that draws what all seeds measured.
"""

from __future__ import annotations

import enum
import importlib
import pkgutil
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import optim

T = TypeVar("T")


class Size(enum.IntEnum):
    """How much work an experiment may take: seconds, at most three minutes, or longer."""

    QUICK = 0
    NORMAL = 1
    FULL = 2

    def pick(self, quick: T, normal: T, full: T | None = None) -> T:
        """The value for this size; full is as normal unless given."""
        return quick if self is Size.QUICK else normal if self is Size.NORMAL or full is None else full


@dataclass(frozen=True)
class Check:
    """A number and the threshold that it must meet with every seed.

    Args:
        key: the name under which `run` gives the number.
        what: what the number is, for the table.
        at_least, at_most: the thresholds; one or both.
        control: whether it belongs to the control group: it says whether the measurement can be trusted, not whether
            the claim holds.
    """

    key: str
    what: str
    at_least: float | None = None
    at_most: float | None = None
    control: bool = False

    def __post_init__(self) -> None:
        if self.at_least is None and self.at_most is None:
            raise ValueError(f"Check({self.key!r}): expected at_least or at_most, got neither")

    def met_by(self, value: float) -> bool:
        """Whether the value meets the threshold; NaN meets none."""
        above = self.at_least is None or value >= self.at_least
        return above and (self.at_most is None or value <= self.at_most)

    @property
    def threshold(self) -> str:
        low, high = self.at_least, self.at_most
        if low is not None and low == high:
            return f"= {low:g}"
        return " and ".join(s for s in (low is not None and f"≥ {low:g}", high is not None and f"≤ {high:g}") if s)

    def worst(self, values: Sequence[float]) -> float:
        """The value that is furthest towards, or beyond, the threshold."""

        def room(value: float) -> float:
            rooms = []
            if self.at_least is not None:
                rooms.append(value - self.at_least)
            if self.at_most is not None:
                rooms.append(self.at_most - value)
            return min(rooms) if value == value else -float("inf")

        return min(values, key=room)


@dataclass
class Result:
    """What one seed gave: numbers for the table, and whatever the picture needs."""

    values: dict[str, float]
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    what: str
    threshold: str
    values: tuple[float, ...]
    met: bool | None  # None: measured, but nothing was expected of it

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def spread(self) -> float:
        """The standard deviation over the seeds."""
        return statistics.stdev(self.values) if len(self.values) > 1 else 0.0


@dataclass(frozen=True)
class Experiment:
    """A claim, and how it is put to the test.

    Args:
        module: the file's `__name__`; its last part is the experiment's name.
        text: the file's docstring.
        claim: the number of the claim in the explanation.
        checks: the thresholds.
        run: (seed, size) -> Result.
        draw: (figure, results) -> None.
        others: what is measured for information only, by key: what the number is.
    """

    module: str
    text: str | None
    claim: int
    checks: tuple[Check, ...]
    run: Callable[[int, Size], Result]
    draw: Callable[[Any, list[Result]], None]
    others: dict[str, str] = field(default_factory=dict)
    size: tuple[float, float] = (10.0, 4.5)  # of the picture, in inches

    @property
    def name(self) -> str:
        return self.module.rpartition(".")[2]

    @property
    def title(self) -> str:
        return (self.text or "").partition("\n")[0]

    @property
    def paragraphs(self) -> list[str]:
        """The docstring without its title; the lines of each paragraph joined."""
        body = (self.text or "").partition("\n")[2]
        return [" ".join(p.split()) for p in body.split("\n\n") if p.strip()]

    def measure(self, seeds: Iterable[int], size: Size = Size.NORMAL) -> Report:
        """Run it once for each seed, on one thread: matrices as small as these take longer to share than to compute.

        Raises:
            KeyError: `run` did not measure what a check asks for.
        """
        results, threads = [], tg.get_num_threads()
        for seed in seeds:
            tg.manual_seed(seed)
            tg.set_num_threads(1)
            try:
                result = self.run(seed, size)
            finally:
                tg.set_num_threads(threads)
            missing = [c.key for c in self.checks if c.key not in result.values]
            unknown = [k for k in result.values if k not in self.others and k not in {c.key for c in self.checks}]
            if missing or unknown:
                raise KeyError(
                    f"{self.name}: expected every check's number, got none for {missing}, and {unknown} unasked"
                )
            results.append(result)
        return Report(self, results)


@dataclass(frozen=True)
class Report:
    """What all seeds gave, held against the thresholds."""

    experiment: Experiment
    results: list[Result]

    def _values(self, key: str) -> tuple[float, ...]:
        return tuple(float(r.values[key]) for r in self.results)

    def met(self, check: Check) -> bool:
        """Whether every seed meets it."""
        return all(map(check.met_by, self._values(check.key)))

    @property
    def rows(self) -> list[Row]:
        rows = []
        for control in (False, True):
            for c in self.experiment.checks:
                if c.control == control:
                    what = f"control: {c.what}" if control else c.what
                    rows.append(Row(what, c.threshold, self._values(c.key), self.met(c)))
        rows += [Row(what, "", self._values(key), None) for key, what in self.experiment.others.items()]
        return rows

    @property
    def verdict(self) -> str:
        """holds, holds in part, does not hold; undecided when the control group did not do what it must."""
        checks = self.experiment.checks
        if not all(self.met(c) for c in checks if c.control):
            return "undecided"
        met = [self.met(c) for c in checks if not c.control]
        return "holds" if all(met) else "holds in part" if any(met) else "does not hold"

    @property
    def by_how_much(self) -> str:
        """The verdict in a sentence or two: how many checks are met, and the worst value of each that is not."""
        checks = self.experiment.checks
        failed = [c for c in checks if not self.met(c)]
        of_claim = [c for c in checks if not c.control]
        n_met = sum(self.met(c) for c in of_claim)
        text = f"{n_met} of {len(of_claim)} checks of the claim are met with every seed"
        parts = []
        for c in failed:
            kind = "control: " if c.control else ""
            parts.append(f"{kind}{c.what}: {number(c.worst(self._values(c.key)))}, expected {c.threshold}")
        return text + (". Not met: " + "; ".join(parts) if parts else "") + "."

    def table(self) -> str:
        """The table as text."""
        head = ["measured", "threshold", *(f"run {i + 1}" for i in range(len(self.results))), "mean ± spread", ""]
        body = [head]
        for row in self.rows:
            mark = {True: "met", False: "NOT MET", None: ""}[row.met]
            body.append([row.what, row.threshold, *map(number, row.values), mean_and_spread(row), mark])
        widths = [max(len(line[i]) for line in body) for i in range(len(head))]
        lines = []
        for line in body:
            cells = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))]
            lines.append("  ".join(cells).rstrip())
        lines.insert(1, "-" * max(map(len, lines)))
        return "\n".join(lines)


def number(value: float) -> str:
    """A number as short as it may be read."""
    return f"{value:.3g}" if value == 0 or not 1e3 <= abs(value) < 1e7 else f"{value:,.0f}"


def mean_and_spread(row: Row) -> str:
    """mean ± standard deviation over the seeds."""
    return f"{number(row.mean)} ± {number(row.spread)}"


def experiments() -> dict[str, Experiment]:
    """All of them by name, in the order of the explanation."""
    package = importlib.import_module(__package__)
    found = []
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in ("frame", "report", "__main__"):
            found.append(importlib.import_module(f"{__package__}.{module.name}").EXPERIMENT)
    return {e.name: e for e in sorted(found, key=lambda e: (e.claim, e.name))}


# What experiments need again and again.


def normal(random: np.random.Generator, *shape: int, grad: bool = False) -> tg.Tensor:
    """Independent N(0, 1) in float64."""
    return tg.tensor(random.standard_normal(shape), requires_grad=grad)


def gap(a: Any, b: Any) -> float:
    """The largest difference between a and b, relative to the largest element of b."""
    a, b = (x.detach().numpy() if isinstance(x, tg.Tensor) else np.asarray(x) for x in (a, b))
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-300))


def fit(
    parameters: Iterable[tg.Tensor],
    loss: Callable[[], Any],
    steps: int,
    lr: float = 3e-3,
    warmup: int = 0,
    clip: float = 1.0,
    until: float | None = None,
) -> list[float]:
    """Adam for some steps, the rate falling as a cosine; the losses before each step.

    With `until` the rate stays, and training ends early once the mean of the last 20 losses is below it.
    """
    chosen = list(parameters)
    optimizer = optim.AdamW(chosen, lr=lr, weight_decay=0.0)
    schedule = optim.cosine(lr, steps, warmup=warmup, min_lr=0.05 * lr if until is None else lr)
    losses: list[float] = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = schedule(step)
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optim.clip_grad_norm_(chosen, clip)
        optimizer.step()
        losses.append(value.item())
        if until is not None and step > 20 and np.mean(losses[-20:]) < until:
            break
    return losses


def accuracy(logits: tg.Tensor, targets: np.ndarray[Any, Any]) -> float:
    """The share of rows whose largest logit is the target's."""
    return float((logits.detach().numpy().argmax(-1) == targets).mean())
