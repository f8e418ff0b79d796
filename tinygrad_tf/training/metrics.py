"""metrics.jsonl, one line for each logged step, and the picture of it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tinygrad_tf.training.checkpoints import write_whole


def read_metrics(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl; a last line that was cut off when the process died is left out."""
    rows: list[dict[str, Any]] = []
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return rows
    for i, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError:
            if i < len(lines) - 1:  # not the last: somebody edited it
                raise ValueError(f"{path}: line {i + 1} is damaged") from None
    return rows


class Metrics:
    """Rows of numbers that are appended to a file, each as soon as it is known.

    Arguments:
        path: the file, or None to keep them in memory only.
        until: keep rows of at most this step; later ones, of a run that died after its checkpoint, are dropped.
    """

    def __init__(self, path: Path | None, until: int = 0) -> None:
        self.path = path
        self.rows = [row for row in read_metrics(path) if row["step"] <= until] if path is not None else []
        if path is not None:
            write_whole(path, "".join(json.dumps(row) + "\n" for row in self.rows).encode())

    def add(self, row: dict[str, Any]) -> None:
        """Append a row."""
        self.rows.append(row)
        if self.path is not None:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def plot_metrics(
    rows: Sequence[dict[str, Any]], path: str | os.PathLike[str], floor: float | None = None, title: str = ""
) -> None:
    """Draw training and validation loss over steps, and the floor as a dashed line, into a PNG file.

    Arguments:
        rows: dicts with step, loss and val_loss (None where it was not measured), as `read_metrics` gives them.
        path: where to.
        floor: the loss that cannot be beaten, if it is known.
        title: above the picture.

    Raises ImportError without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install 'tinygrad_tf[train]'") from None
    figure = Figure(figsize=(8, 5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    for key, label, style in (("loss", "training", "-"), ("val_loss", "validation", "o-")):
        points = [(row["step"], row[key]) for row in rows if row.get(key) is not None]
        if points:
            faint = 0.6 if key == "loss" else 1.0
            axes.plot(*zip(*points, strict=True), style, label=label, alpha=faint, markersize=3)
    if floor is not None:
        axes.axhline(floor, linestyle="--", color="black", linewidth=1, label=f"floor {floor:.4f}")
    axes.set(xlabel="step", ylabel="loss (nats per token)", title=title)
    axes.grid(alpha=0.3)
    axes.legend()
    beside = Path(path).with_name(f".{Path(path).name}.tmp")
    figure.savefig(beside, format="png")
    os.replace(beside, path)
