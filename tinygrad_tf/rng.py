"""The process's random state: a numpy Generator for creation, and a seed with a call counter for dropout.

Dropout's masks are functions of (seed, number of the call, element), so they are computed again in the backward pass
rather than stored, and are the same on any number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .modes import Array, _recorder, not_captured


class _State:
    def __init__(self, seed: int):
        self.generator = np.random.Generator(np.random.PCG64(seed))
        self.seed = seed
        self.call = 0


_state = _State(int(np.random.SeedSequence().generate_state(1, np.uint64)[0]) >> 1)


def manual_seed(seed: int) -> None:
    """Start all random numbers of this package again from `seed`, a non-negative integer below 2^63.

    >>> import tinygrad_tf as tg
    >>> tg.manual_seed(0)
    >>> a = tg.rand(3)
    >>> tg.manual_seed(0)
    >>> bool((a == tg.rand(3)).all())
    True
    """
    global _state
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= seed < 2**63:
        raise ValueError(f"manual_seed: expected an integer from 0 to 2**63 - 1, got {seed!r}")
    _state = _State(int(seed))


def get_rng_state() -> dict[str, Any]:
    """The whole random state, as a dictionary that JSON can hold: see `set_rng_state`."""
    return {"seed": _state.seed, "call": _state.call, "generator": _state.generator.bit_generator.state}


def set_rng_state(state: dict[str, Any]) -> None:
    """Go back to a state that `get_rng_state` gave."""
    if not isinstance(state, dict) or {"seed", "call", "generator"} - set(state):
        raise ValueError("set_rng_state: expected what get_rng_state() gave: a dict with seed, call and generator")
    _state.generator.bit_generator.state = state["generator"]
    _state.seed, _state.call = int(state["seed"]), int(state["call"])


def generator() -> np.random.Generator:
    """The numpy Generator that rand, randn, randint and randperm draw from."""
    not_captured("random tensors are made")
    return _state.generator


def next_draw() -> Array:
    """The key and number of one random operation, two 64-bit words for its kernel, and move on."""
    draw = np.empty(2, np.uint64)
    recorder = _recorder.get()
    if recorder is None:
        _draw(draw)
    else:
        recorder.state("draws", _draws, _set_draws)
        recorder.apply(_draw, recorder.hold(draw))
    return draw


def _draw(draw: Array) -> None:
    _state.call += 1
    draw[:] = _state.seed, _state.call


def _draws() -> int:
    return _state.call


def _set_draws(number: int) -> None:
    _state.call = number
