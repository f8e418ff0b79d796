"""What all benchmarks share: sides in processes of their own that take turns, tables, and what machine it was.

A side is the benchmark's own script, started with `--side NAME`; it answers one line of JSON with another. Only one side
works at a time, so neither disturbs the other, and since they take turns a noisy machine disturbs both alike.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

THREADS = 2
PAUSE = 0.1  # seconds: the threads of OpenMP and OpenBLAS spin up to 30 ms before they sleep, and would take another side's core


def cpu() -> str:
    """The processor's name and vector units."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {k.strip(): v.strip() for k, v in facts.items()}
    units = [u for u in ("avx2", "fma", "avx512f") if u in facts.get("flags", "").split()]
    return f"{facts.get('model name', platform.machine())} (family {facts.get('cpu family', '?')}; {', '.join(units)})"


def environment() -> dict[str, Any]:
    """What a figure depends on beside the code."""
    versions = {}
    for name in ("numpy", "numba", "torch"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {"cpu": cpu(), "cores": os.cpu_count(), "threads": THREADS, "python": platform.python_version(), **versions}


class Side:
    """One side: a process of the benchmark's own script."""

    def __init__(self, script: str, name: str, *arguments: str, **variables: str):
        command = [sys.executable, script, "--side", name, *arguments]
        self.name = name
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **variables}
        )

    def ask(self, **question: Any) -> dict[str, Any]:
        """Hand over a question and wait for the answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the side {self.name!r} ended early (status {self.process.wait()})")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def serve(answer: Callable[..., dict[str, Any]]) -> None:
    """Be a side: call `answer(**question)` for every line that comes in."""
    for line in sys.stdin:
        print(json.dumps(answer(**json.loads(line))), flush=True)


def take_turns(sides: list[Side], turns: int, **question: Any) -> dict[str, list[dict[str, Any]]]:
    """Ask all sides the same, `turns` times, in alternating order."""
    answers: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
    for turn in range(turns):
        for side in sides if turn % 2 == 0 else sides[::-1]:
            time.sleep(PAUSE)
            answers[side.name].append(side.ask(**question))
    return answers


def median(answers: list[dict[str, Any]], key: str = "seconds") -> float:
    """The median over all turns."""
    return statistics.median(s for a in answers for s in a[key])


def peak_memory() -> int:
    """The largest resident size of this process so far, in bytes."""
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size


def limit_threads() -> None:
    """Give this side's library its two threads."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(THREADS)
    if "tinygrad_tf" in sys.modules:
        sys.modules["tinygrad_tf"].set_num_threads(THREADS)


def options(documentation: str | None, **more: dict[str, Any]) -> argparse.Namespace:
    """The options of a benchmark: `--out FILE.json` and its own."""
    parser = argparse.ArgumentParser(description=(documentation or "").splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE.json", help="also write the figures here")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    for name, settings in more.items():
        parser.add_argument(name if settings.pop("positional", False) else f"--{name.replace('_', '-')}", **settings)
    return parser.parse_args()


def table(headers: list[str], rows: list[list[Any]]) -> str:
    """A table of text, numbers to the right."""
    cells = [[c if isinstance(c, str) else f"{c:.3g}" for c in row] for row in rows]
    widths = [max([len(h), *(len(r[i]) for r in cells)]) for i, h in enumerate(headers)]
    lines = ["  ".join(h.ljust(w) for h, w in zip(headers, widths, strict=True))]
    for row, original in zip(cells, rows, strict=True):
        lines.append(
            "  ".join(
                c.ljust(w) if isinstance(o, str) else c.rjust(w) for c, w, o in zip(row, widths, original, strict=True)
            )
        )
    return "\n".join(lines)


def report(headers: list[str], rows: list[list[Any]], out: pathlib.Path | None, **more: Any) -> None:
    """Print the table and the machine; write both to `out` as JSON."""
    where = environment()
    print(table(headers, rows))
    print("\n" + ", ".join(f"{k} {v}" for k, v in where.items()))
    if out:
        out.write_text(json.dumps({"environment": where, "headers": headers, "rows": rows, **more}, indent=1))
