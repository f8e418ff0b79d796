"""Without 1/√d_k the softmax saturates and its gradient vanishes (scaling, 缩放)

Claim. The score q·k (点积) of independent queries and keys with unit variance has variance d_k. Without the division by √d_k
the softmax of wide heads is nearly one-hot, and the gradient that passes it vanishes.

Expected. The variance grows as d_k to the power 1 (0.9 to 1.1); scaled, it stays between 0.85 and 1.15 at every width.
At d_k = 1024 the largest of 64 weights has median at least 0.95 without scaling, at most 0.3 with it. There the median
gradient is at most 0.05 of the scaled one, and the mean of the gradients, too, is at most 0.05 of the scaled one.

Control. Keys of variance 1/d_k need no division: their raw scores give a median gradient of 0.8 to 1.25 times the scaled
one. So it is the size of the scores that does it, not the width.

Note. The two disagree when a few rows keep their gradient: those whose two largest scores happen to be close. The table gives their share (more than 0.1 of the scaled
median) and the power of d_k with which the mean falls: theory says −1/2, for the chance of two scores at a distance of about 1 when they spread over √d_k. The typical row
is lost, the mean falls slowly: the gradient that is left is a matter of chance.
"""

from typing import Any

import numpy as np

from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, normal

WIDTHS, KEYS = (4, 16, 64, 256, 1024), 64


def passed(scores: Any, random: np.random.Generator) -> tuple[float, float, float, Any]:
    """The median of the largest weight; median, mean and all norms of the gradient that a random one leaves behind softmax."""
    s = scores.detach().requires_grad_()
    weights = F.softmax(s, -1)
    weights.backward(normal(random, *s.shape))
    norms = np.linalg.norm(s.grad.numpy(), axis=-1)
    return float(np.median(weights.detach().numpy().max(-1))), float(np.median(norms)), float(norms.mean()), norms


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    n = size.pick(500, 4000, 20000)
    raw_var, scaled_var, raw, scaled = [], [], [], []
    for d_k in WIDTHS:
        q = normal(random, n // 10, 1, d_k)
        k = normal(random, n // 10, KEYS, d_k)
        scores = (q @ k.transpose(-1, -2)).reshape(n // 10, KEYS)
        raw_var.append(float(scores.numpy().var()))
        scaled_var.append(raw_var[-1] / d_k)
        raw.append(passed(scores, random))
        scaled.append(passed(scores / d_k**0.5, random))
    small = passed((q @ (k / d_k**0.5).transpose(-1, -2)).reshape(n // 10, KEYS), random)
    values = {
        "power": float(np.polyfit(np.log(WIDTHS), np.log(raw_var), 1)[0]),
        "lowest": min(scaled_var),
        "highest": max(scaled_var),
        "raw_peak": raw[-1][0],
        "scaled_peak": scaled[-1][0],
        "median": raw[-1][1] / scaled[-1][1],
        "mean": raw[-1][2] / scaled[-1][2],
        "small_keys": small[1] / scaled[-1][1],
        "alive": float((raw[-1][3] > 0.1 * scaled[-1][1]).mean()),
        "mean_power": float(np.polyfit(np.log(WIDTHS[2:]), np.log([r[2] for r in raw[2:]]), 1)[0]),
    }
    return Result(values, {"raw_var": raw_var, "scaled_var": scaled_var, "raw": raw, "scaled": scaled})


def draw(figure: Any, results: list[Result]) -> None:
    left, middle, right = figure.subplots(1, 3)
    for i, r in enumerate(results):
        for name, colour, label in (("raw", "tab:red", "q·k"), ("scaled", "tab:blue", "q·k / √d_k")):
            label = label if i == 0 else ""
            left.loglog(WIDTHS, r.data[f"{name}_var"], "o-", color=colour, label=label)
            peaks, medians, means, _ = zip(*r.data[name], strict=True)
            middle.semilogx(WIDTHS, peaks, "o-", color=colour)
            right.loglog(WIDTHS, medians, "o-", color=colour, label="median" if i == 0 and name == "raw" else None)
            right.loglog(WIDTHS, means, "--", color=colour, label="mean" if i == 0 and name == "raw" else None)
    left.set(title="variance of the scores", xlabel="d_k")
    middle.set(title="largest of 64 weights (median)", xlabel="d_k", ylim=(0, 1.05))
    right.set(title="gradient behind the softmax", xlabel="d_k")
    left.legend()
    right.legend()


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    2,
    (
        Check("power", "power of d_k with which the variance grows", 0.9, 1.1),
        Check("lowest", "lowest variance of scaled scores, over d_k", at_least=0.85),
        Check("highest", "highest variance of scaled scores, over d_k", at_most=1.15),
        Check("raw_peak", "largest weight at d_k = 1024, unscaled (median)", at_least=0.95),
        Check("scaled_peak", "largest weight at d_k = 1024, scaled (median)", at_most=0.3),
        Check("median", "median gradient at d_k = 1024, unscaled / scaled", at_most=0.05),
        Check("mean", "mean gradient at d_k = 1024, unscaled / scaled", at_most=0.05),
        Check("small_keys", "median gradient with keys of variance 1/d_k / scaled", 0.8, 1.25, control=True),
    ),
    run,
    draw,
    {
        "alive": "share of rows that keep a gradient, unscaled",
        "mean_power": "power of d_k with which the mean gradient falls, unscaled",
    },
    size=(13, 4.2),
)
