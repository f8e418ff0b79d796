"""What a training shows of itself: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(max(seconds, 0) + 0.5), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


class Progress:
    """A context manager: `update` at every step, `line` for what stays."""

    def __init__(self, steps: int, done: int, plain_every: float = 2.0) -> None:
        self.steps, self.first, self.plain_every = steps, done, plain_every
        self.bar: Any = None
        if sys.stdout.isatty():
            try:
                from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
                from rich.progress import Progress as Bar
            except ImportError:  # rich is an extra
                return
            self.bar = Bar(
                TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[facts]}")
            )
            self.task = self.bar.add_task("training", total=steps, completed=done, facts="")

    def __enter__(self) -> Progress:
        self.begin = self.shown = time.perf_counter()
        if self.bar is not None:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.stop()

    def update(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Show where the training is."""
        now = time.perf_counter()
        left = (now - self.begin) / max(step - self.first, 1) * (self.steps - step)
        facts = f"loss {loss:.4f}  {tokens_per_s:,.0f} tokens/s  {_duration(left)} left"
        if self.bar is not None:
            self.bar.update(self.task, completed=step, facts=facts)
        elif step == self.first + 1 or now - self.shown >= self.plain_every:
            self.shown = now
            print(f"step {step}/{self.steps}  {facts}", flush=True)

    def line(self, text: str) -> None:
        """Show a line that stays."""
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, flush=True)


class Silent:
    """No progress at all."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def update(self, step: int, loss: float, tokens_per_s: float) -> None:
        """Show nothing."""

    def line(self, text: str) -> None:
        """Show nothing."""
