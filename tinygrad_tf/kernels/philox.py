"""Philox4x32-10: random numbers as a function of (key, call, index), so a dropout mask is recomputed, not stored.

Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3". Element `index` is output word `index % 4` of the
block whose counter is the words (low, high) of `index // 4` and (low, high) of `call`; the key's words are its low and
high half.
"""

from __future__ import annotations

import numpy as np

from .runtime import device

_M0 = np.uint64(0xD2511F53)
_M1 = np.uint64(0xCD9E8D57)
_W0 = np.uint32(0x9E3779B9)
_W1 = np.uint32(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


@device
def philox_block(block, call, key_lo, key_hi):
    """The four 32-bit words of counter (block, call) under the key."""
    c0 = np.uint32(np.uint64(block) & _LOW)
    c1 = np.uint32(np.uint64(block) >> _HALF)
    c2 = np.uint32(np.uint64(call) & _LOW)
    c3 = np.uint32(np.uint64(call) >> _HALF)
    k0 = np.uint32(key_lo)
    k1 = np.uint32(key_hi)
    for _ in range(10):
        p0 = _M0 * np.uint64(c0)
        p1 = _M1 * np.uint64(c2)
        c0 = np.uint32(np.uint32(p1 >> _HALF) ^ c1 ^ k0)
        c2 = np.uint32(np.uint32(p0 >> _HALF) ^ c3 ^ k1)
        c1 = np.uint32(p1 & _LOW)
        c3 = np.uint32(p0 & _LOW)
        k0 = np.uint32(k0 + _W0)
        k1 = np.uint32(k1 + _W1)
    return c0, c1, c2, c3


@device
def philox_uniform(key_lo, key_hi, call, index):
    """The number in [0, 1) that belongs to `index`: 24 random bits, so it is exact in float32."""
    c0, c1, c2, c3 = philox_block(np.uint64(index) >> np.uint64(2), call, key_lo, key_hi)
    lane = np.uint64(index) & np.uint64(3)
    word = c0
    if lane == 1:
        word = c1
    elif lane == 2:
        word = c2
    elif lane == 3:
        word = c3
    return np.float32(word >> np.uint32(8)) * np.float32(2.0**-24)
