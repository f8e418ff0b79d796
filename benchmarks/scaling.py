"""How a training step grows with layers, width, context and batch; memory against context; overhead of small operations.

    python benchmarks/scaling.py [--turns 3] [--out FILE.json]

One quantity is doubled at a time; "times" is the step against the one before, "arithmetic" how the floating-point
operations grew. Overhead: microseconds of an operation on 1-element tensors, forward, and with its backward.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import training
from sides import Side, limit_threads, median, options, peak_memory, report, serve, take_turns

BASE = dict(vocab_size=65, block_size=128, n_layer=2, n_head=4, n_embd=128, bias=True)
SWEEPS: dict[str, list[Any]] = {
    "n_layer": [1, 2, 4, 8], "n_embd": [64, 128, 256, 512], "block_size": [128, 256, 512, 1024], "batch": [4, 8, 16, 32]
}  # fmt: skip
OPERATIONS = 1000


def configure(what: str, value: int) -> None:
    """Make the wanted model known to `training` as "swept"."""
    config = {**BASE, **({what: value} if what != "batch" else {})}
    training.CONFIGS["swept"] = value if what == "batch" else 8, config, 1


def side(which: str) -> None:
    """Be a side: a step of the swept model in this fresh process, or small operations."""
    state: dict[str, Any] = {}

    def answer(do: str, what: str = "", value: int = 0) -> dict[str, Any]:
        if do == "overhead":
            return {"seconds": overhead(which)}
        if do == "start":
            configure(what, value)
            state["step"] = training.ours("swept", None)
            return {}
        if do == "memory":
            return {"bytes": peak_memory()}
        batch, c, _ = training.CONFIGS["swept"]
        ids = np.random.default_rng(0).integers(0, 65, (batch, c["block_size"] + 1))
        start = time.perf_counter()
        state["step"](np.ascontiguousarray(ids[:, :-1]), np.ascontiguousarray(ids[:, 1:]))
        return {"seconds": [time.perf_counter() - start]}

    serve(answer)


def overhead(which: str) -> list[float]:
    """Seconds an operation on 1 element takes: forward without a graph; forward with its share of backward; and this again,
    captured, if that can be.
    """
    if which == "ours":
        import tinygrad_tf as library

        x: Any = library.tensor([1.0], requires_grad=True)
    else:
        import torch as library

        x = library.tensor([1.0], requires_grad=True)
    limit_threads()

    def forward() -> Any:
        y = x
        for _ in range(OPERATIONS):
            y = y * x
        return y

    def backward() -> None:
        forward().backward()

    def step(function: Callable[[], Any]) -> Callable[[], Any]:
        def both() -> None:
            x.grad = None
            function()

        return both

    def timed(function: Callable[[], Any]) -> float:
        gc.collect()  # what others left would be collected meanwhile
        start = time.perf_counter()
        function()
        return (time.perf_counter() - start) / OPERATIONS

    with library.no_grad():
        found = [timed(forward)]
    found.append(timed(step(backward)))
    if which == "ours":
        captured = library.capture(backward)
        for _ in range(3):  # as it is, recorded, judged
            step(captured)()
        assert captured.why is None
        found.append(timed(step(captured)))
    return found


def main() -> None:
    o = options(__doc__, turns=dict(type=int, default=3))
    if o.side:
        side(o.side)
        return
    rows = []
    for what, values in SWEEPS.items():
        before: tuple[float, float] | None = None
        for value in values:
            one = Side(__file__, "ours")
            one.ask(do="start", what=what, value=value)
            for _ in range(4):  # captured, and replayed once
                one.ask(do="step")
            seconds = median([one.ask(do="step") for _ in range(o.turns)])
            memory = one.ask(do="memory")["bytes"] / 2**20
            one.close()
            configure(what, value)
            work = training.arithmetic("swept")
            growth = [seconds / before[0], work / before[1]] if before else ["", ""]
            rows.append([f"{what} {value}", 1000 * seconds, *growth, memory])
            before = seconds, work
    report(["swept", "ms a step", "times", "arithmetic", "peak MiB"], rows, None)
    print()
    sides = [Side(__file__, which) for which in ("ours", "torch")]
    take_turns(sides, 1, do="overhead")
    answers = take_turns(sides, o.turns, do="overhead")
    small = []
    for i, name in enumerate(("forward, no graph", "forward and backward", "forward and backward, captured here")):
        s = {which: float(np.median([a["seconds"][min(i, len(a["seconds"]) - 1)] for a in found]))
             for which, found in answers.items()}  # fmt: skip
        small.append([f"1-element multiplication, {name}", 1e6 * s["ours"], 1e6 * s["torch"], s["torch"] / s["ours"]])
    for one in sides:
        one.close()
    report(["small operation", "ours us", "PyTorch us", "times as fast"], small, o.out, scaling=rows)


if __name__ == "__main__":
    main()
