"""Linear probes: what can be read off recorded activations, beside what could be read off by chance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..graph import Array
from .picture import COLOURS, Picture, grid, name_ticks


@dataclass
class Probe:
    """The share of right answers on what the probe was not fitted to: mean and standard deviation over the splits.

    Attributes:
        accuracy, spread: with the labels as they are.
        control, control_spread: with the labels shuffled, everything else equal.
        chance: of always saying the commonest label.
    """

    accuracy: float
    spread: float
    control: float
    control_spread: float
    chance: float


class Probes(dict[str, Probe], Picture):
    """Probes by layer: what `probe_layers` found; `str()` gives a table, `plot` a picture."""

    def __str__(self) -> str:
        rows = [["layer", "accuracy", "shuffled", "chance"]]
        for name, p in self.items():
            parts = (
                f"{p.accuracy:.3f} ± {p.spread:.3f}",
                f"{p.control:.3f} ± {p.control_spread:.3f}",
                f"{p.chance:.3f}",
            )
            rows.append([name, *parts])
        return grid(rows)

    def draw(self, figure: Any) -> None:
        """Accuracy and the shuffled control over the layers, with their spread."""
        axes, places = figure.add_subplot(), range(len(self))
        for label, colour, style, values in (
            ("labels as they are", COLOURS[0], "o-", [(p.accuracy, p.spread) for p in self.values()]),
            ("labels shuffled", COLOURS[1], "s--", [(p.control, p.control_spread) for p in self.values()]),
        ):
            means, spreads = zip(*values, strict=True)
            axes.errorbar(places, means, spreads, fmt=style, color=colour, label=label, capsize=3)
        axes.axhline(next(iter(self.values())).chance, color="0.4", ls=":", label="the commonest label")
        name_ticks(axes.xaxis, list(self))
        axes.set(ylim=(0, 1.05), xlabel="behind which layer", ylabel="right, held out")
        axes.legend(frameon=False)
        axes.grid(True, alpha=0.3)


def probe(
    features: Any,
    labels: Any,
    *,
    groups: Any = None,
    held_out: float = 0.5,
    penalty: float = 1e-4,
    splits: int = 5,
    seed: int = 0,
) -> Probe:
    """A ridge classifier, argmax of W x + b, W fitted to one-hot labels: can they be read off the features linearly?

    min over W, b of Σ |W x + b − onehot(label)|² + penalty · n · |W|², the features scaled to a variance of 1; solved exactly.

    Args:
        features: activations, (..., width); all leading axes count as examples.
        labels: whole numbers of the shape of these leading axes.
        groups: the same shape; a group is fitted to or held out as a whole (default: each example is a group). Use it where
            equal examples occur more than once, or they stand on both sides.
        held_out: the share of groups that is kept for the measurement (default 0.5).
        penalty: of the weights (default 1e-4).
        splits: how many random splits (default 5); `seed` draws them (default 0).

    Raises:
        ValueError: labels or groups do not fit the features, there is only one label, or a split leaves nothing on one side.

    Source: Alain and Bengio 2016; the control: Hewitt and Liang 2019.

    >>> import numpy as np, tinygrad_tf as tg
    >>> x = np.random.default_rng(0).standard_normal((400, 8))
    >>> found = tg.inspect.probe(x, x[:, 3] > 0)
    >>> found.accuracy > 0.9 > 0.7 > found.control
    True
    """
    x = np.asarray(getattr(features, "_data", features), dtype=np.float64)
    named, y = np.unique(np.asarray(getattr(labels, "_data", labels)), return_inverse=True)
    shape = x.shape[:-1]
    y = y.reshape(np.shape(getattr(labels, "_data", labels)))
    unit = np.arange(y.size).reshape(y.shape) if groups is None else np.asarray(groups)
    for name, a in (("labels", y), ("groups", unit)):
        if a.shape != shape:
            raise ValueError(f"probe: {name} must have the shape of the features' leading axes, {shape}, got {a.shape}")
    if len(named) < 2:
        raise ValueError(f"probe: expected at least two different labels, got {len(named)}")
    x, y, unit = (
        x.reshape(-1, x.shape[-1]),
        y.reshape(-1),
        np.unique(unit.reshape(-1), return_inverse=True)[1].reshape(-1),
    )
    n_groups = int(unit.max()) + 1
    n_held = round(held_out * n_groups)
    if not 0 < n_held < n_groups:
        raise ValueError(
            f"probe: held_out={held_out} of {n_groups} groups leaves nothing on one side; give more examples"
        )
    scale = x.std(0)
    x = (x - x.mean(0)) / np.where(scale > 1e-12, scale, 1.0)
    random = np.random.default_rng(seed)
    true, shuffled = [], []
    for _ in range(splits):
        away = np.isin(unit, random.permutation(n_groups)[:n_held])
        true.append(_fit(x, y, away, len(named), penalty))
        shuffled.append(_fit(x, random.permutation(y), away, len(named), penalty))
    chance = float(np.bincount(y).max() / len(y))
    mean, std = np.mean([true, shuffled], 1), np.std([true, shuffled], 1)
    return Probe(float(mean[0]), float(std[0]), float(mean[1]), float(std[1]), chance)


def _fit(x: Array, y: Array, away: Array, n_labels: int, penalty: float) -> float:
    """Fit to what is not held out; the share of right labels on what is."""
    inputs, wanted = x[~away], np.eye(n_labels)[y[~away]]
    centre, middle = inputs.mean(0), wanted.mean(0)
    inputs = inputs - centre
    gram = inputs.T @ inputs + penalty * len(inputs) * np.eye(x.shape[1])
    weight = np.linalg.solve(gram, inputs.T @ (wanted - middle))
    return float((((x[away] - centre) @ weight + middle).argmax(1) == y[away]).mean())


def probe_layers(activations: Mapping[str, Any], labels: Any, **options: Any) -> Probes:
    """`probe` for each of some recorded activations: in which layer can the labels be read off?

    Args:
        activations: name -> array, (..., width), such as `record` gives.
        labels: as for `probe`, the same for all; `options` too.

    >>> import numpy as np, tinygrad_tf as tg
    >>> x = np.random.default_rng(0).standard_normal((400, 8))
    >>> layers = {"first": x, "second": np.maximum(x, 0)}
    >>> [name for name, found in tg.inspect.probe_layers(layers, x[:, 0] > 0).items() if found.accuracy > 0.85]
    ['first', 'second']
    """
    return Probes({name: probe(a, labels, **options) for name, a in activations.items()})
