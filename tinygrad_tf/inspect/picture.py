"""What all findings share that can be drawn: `plot`, which needs matplotlib, and `draw`, which a talk's own figure can use."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

COLOURS = ("#1f5fa8", "#c8641e", "#3f8f5f", "#8a4f9e", "#7a6a4f", "#111111")  # told apart also without red and green


class Picture:
    """Something with a picture: a subclass says in `draw` how it goes onto a figure."""

    figure_size = (8.0, 4.5)  # inches

    def draw(self, figure: Any) -> None:
        """Draw onto a matplotlib Figure or SubFigure."""
        raise NotImplementedError(f"{type(self).__name__} must define draw(self, figure)")

    def plot(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The picture on a figure of its own; saved if a path is given. Returns matplotlib's Figure.

        Raises ImportError without matplotlib (`pip install 'tinygrad_tf[train]'`).
        """
        try:
            from matplotlib.figure import Figure
        except ImportError:
            name = type(self).__name__
            raise ImportError(
                f"{name}.plot needs matplotlib: pip install 'tinygrad_tf[train]' (str() and the numbers need nothing)"
            ) from None
        figure = Figure(figsize=self.figure_size, layout="constrained")
        self.draw(figure)
        if path is not None:
            figure.savefig(path, dpi=150)
        return figure


def name_ticks(axis: Any, names: Sequence[str]) -> None:
    """Names along a matplotlib axis, as many as there is room for."""
    step = -(-len(names) // 32)
    places = range(0, len(names), step)
    kind = {"rotation": 30, "ha": "right"} if axis.axis_name == "x" and max(map(len, names), default=0) > 3 else {}
    axis.set_ticks(places, [names[i] for i in places], fontsize=9, **kind)


def grid(rows: Sequence[Sequence[str]]) -> str:
    """A table as text: the first column to the left, the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(c.rjust(w) if i else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    )
