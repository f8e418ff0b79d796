"""What a block costs: attention grows with T² d, the FFN with T d d_ff (计算复杂度)

Claim. Attention (注意力) compares every position with every other: O(T² d). The FFN (前馈网络) works on each on its own: O(T d d_ff). So a short text is the FFN's
cost, a long one attention's.

Expected. Counted as they run, the multiplications and additions of comparing and mixing are 4 T² d and those of the FFN are 4 T d d_ff: these terms fitted to all sizes leave at most 1e-9 of the count,
and from T = 1024 to 4096 the counts grow by the factors 16 and 4, exactly. What the claim leaves out: the projections W_Q, W_K, W_V and W_O take 8 T d² more (left by
the fit: at most 1e-9), so with d_ff = 4 d attention as a whole costs as much as the FFN at T = 2 d and not at T = d_ff (counts there: ratio 1, exactly). The measured time of attention
grows from T = 1024 to 4096 at least 1.7 times as much as that of the FFN (by the counts: 4 times).

Control. The definitions, without fused kernels, count the same products (difference 0). Attention to a window of 64 positions counts as a linear cost: factor 4, exactly, from T = 1024 to 4096.

Note. Times are the medians of the processor time of one thread, which other programs on the machine do not lengthen much; the powers fitted to them are in the table, without a threshold.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn

from .frame import Check, Experiment, Result, Size

LENGTHS, WIDTHS, WINDOW = (16, 64, 128, 256), (16, 32, 64), 64
D, TIMED = 64, (256, 512, 1024, 2048, 4096)


def counts(t: int, d: int, d_ff: int) -> dict[str, float]:
    """Multiplications and additions of a block's products, as they run: comparing and mixing, projections, FFN."""
    block = nn.TransformerBlock(d, 2, d_ff=d_ff)
    with tg.no_grad(), tg.profile() as p:
        block(tg.zeros(1, t, d))
    found = {"mixing": 0.0, "projections": 0.0, "ffn": 0.0}
    for name, row in p.modules.items():
        part = "ffn" if ".feed_forward" in name else "projections" if "proj" in name else "mixing"
        found[part] += row.flops
    return found


def left(count: Any, *terms: Any) -> float:
    """The largest part of a count that the terms, fitted to all of them, leave."""
    a = np.stack(terms, 1).astype(float)
    return float(np.abs(count - a @ np.linalg.lstsq(a, count, rcond=None)[0]).max() / np.max(count))


def windowed(t: int, d: int) -> float:
    """The count of attention inside windows of 64 positions."""
    mha = nn.MultiHeadAttention(d, 2)
    with tg.no_grad(), tg.profile() as p:
        mha(tg.zeros(t // WINDOW, WINDOW, d))
    return sum(row.flops for name, row in p.modules.items() if "proj" not in name)


def medians(parts: dict[str, Callable[[Any], Any]], repeats: int) -> dict[str, list[float]]:
    """The median seconds of each part at each length, measured in turns."""
    seconds: dict[str, list[list[float]]] = {name: [[] for _ in TIMED] for name in parts}
    inputs = [tg.randn(1, t, D) for t in TIMED]
    with tg.no_grad():
        for repeat in range(repeats + 1):
            for i, x in enumerate(inputs):
                for name, part in parts.items():
                    start = time.process_time()
                    part(x)
                    if repeat:  # the first one compiles
                        seconds[name][i].append(time.process_time() - start)
    return {name: [float(np.median(s)) for s in rows] for name, rows in seconds.items()}


def power(values: Any) -> float:
    """The power of T with which the values grow, from T = 1024 on."""
    return float(np.polyfit(np.log(TIMED[2:]), np.log(values[2:]), 1)[0])


def run(seed: int, size: Size) -> Result:
    sizes = np.array([(t, d, m * d) for t in LENGTHS for d in WIDTHS for m in (1, 2, 4)])
    t, d, d_ff = sizes.T
    rows = [counts(*map(int, s)) for s in sizes]
    count = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    with tg.reference():
        plain = [counts(*map(int, s)) for s in sizes[:: size.pick(9, 3)]]
    short, long = counts(1024, 16, 64), counts(4096, 16, 64)
    equal, at_d_ff = counts(2 * D, D, 4 * D), counts(4 * D, D, 4 * D)
    mha, ffn = nn.MultiHeadAttention(D, 1), nn.FeedForward(D)
    seconds = medians({"attention": mha, "ffn": ffn}, size.pick(3, 9, 31))
    growth = {name: s[-1] / s[2] for name, s in seconds.items()}
    values = {
        "mixing": left(count["mixing"], t**2 * d),
        "ffn": left(count["ffn"], t * d * d_ff),
        "projections": left(count["projections"], t * d**2),
        "mixing_growth": long["mixing"] / short["mixing"],
        "ffn_growth": long["ffn"] / short["ffn"],
        "equal": (equal["mixing"] + equal["projections"]) / equal["ffn"],
        "times": growth["attention"] / growth["ffn"],
        "reference": max(abs(a[k] - b[k]) for a, b in zip(plain, rows[:: size.pick(9, 3)], strict=True) for k in a),
        "window": windowed(4096, 16) / windowed(1024, 16),
        "at_d_ff": (at_d_ff["mixing"] + at_d_ff["projections"]) / at_d_ff["ffn"],
        "attention_power": power(seconds["attention"]),
        "ffn_power": power(seconds["ffn"]),
    }
    block = [counts(length, D, 4 * D) for length in TIMED]
    return Result(values, {"seconds": seconds, "counts": {k: [b[k] for b in block] for k in block[0]}})


def draw(figure: Any, results: list[Result]) -> None:
    counting, timing = figure.subplots(1, 2)
    counted = results[0].data["counts"]
    for name, colour, label in (
        ("mixing", "tab:blue", "comparing and mixing, 4 T² d"),
        ("projections", "tab:cyan", "W_Q, W_K, W_V, W_O, 8 T d²"),
        ("ffn", "tab:orange", "FFN, 4 T d d_ff"),
    ):
        counting.loglog(TIMED, counted[name], "o-", color=colour, label=label)
    for i, r in enumerate(results):
        for name, colour, label in (("attention", "tab:blue", "attention"), ("ffn", "tab:orange", "FFN")):
            timing.loglog(
                TIMED, np.array(r.data["seconds"][name]) * 1e3, "o-", color=colour, label=None if i else label
            )
    counting.set(title=f"multiplications and additions, d = {D}, d_ff = {4 * D}")
    timing.set(title="milliseconds of one thread (median)")
    for axes in (counting, timing):
        axes.set_xscale("log", base=2)
        axes.set_xticks(TIMED, [str(t) for t in TIMED])
        axes.set_xlabel("T")
        axes.legend()


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    15,
    (
        Check("mixing", "count of comparing and mixing, left by T² d", at_most=1e-9),
        Check("ffn", "count of the FFN, left by T d d_ff", at_most=1e-9),
        Check("projections", "count of the projections, left by T d²", at_most=1e-9),
        Check("mixing_growth", "comparing and mixing, T = 4096 / 1024", 16, 16),
        Check("ffn_growth", "FFN, T = 4096 / 1024", 4, 4),
        Check("equal", "all of attention / FFN at T = 2 d, d_ff = 4 d", 1, 1),
        Check("times", "growth of the measured time, attention / FFN", at_least=1.7),
        Check("reference", "count by the definitions, difference", at_most=0, control=True),
        Check("window", "attention in windows of 64, T = 4096 / 1024", 4, 4, control=True),
    ),
    run,
    draw,
    {
        "at_d_ff": "all of attention / FFN at T = d_ff",
        "attention_power": "power of T, measured time of attention",
        "ffn_power": "power of T, measured time of the FFN",
    },
    size=(12, 4.5),
)
