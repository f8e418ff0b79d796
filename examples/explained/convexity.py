"""A head's output lies in the convex hull of its values; the block's does not (凸组合, convex combination)

Claim. The weights of a head (注意力头) are positive and sum to 1, so its output is a mixture of the values and lies in their convex hull
(凸包). W_O with one head only maps that hull; mixing several heads, adding the input (残差) and the feed-forward network (前馈网络)
leave it.

Expected. No output of a head is outside the hull of its values (share 0), and none of one head's behind W_O outside
the hull of the values behind W_O (share 0); that hull is another: at least 0.2 are outside the hull of the values in front of W_O. Of the outputs of two heads, at least 0.2 are outside the hull of the values that
the two heads have together; of x + attention at least 0.5, and of x + FFN(x) at least 0.2 outside the hull of all x; of the whole block's, too, at least 0.2 are outside the hull of all x.

Control. The same head without softmax, its scores divided by their sum, is outside in at least 0.2 of the positions: the
test of being outside can see it. The mean of the values is outside in none (share 0).

Note. A point y is outside when a direction u exists with u·y > max_j u·v_j: a certificate, so no point is called outside wrongly.
The directions are 20000 random ones in 4 dimensions, and those from the hull's middle to the point.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn

from .frame import Check, Experiment, Result, Size, normal

D, T = 4, 24


def outside(points: Any, corners: Any, random: np.random.Generator, n: int) -> float:
    """The share of the points that are certainly outside the hull of the corners."""
    points, corners = (np.asarray(a.detach().numpy() if isinstance(a, tg.Tensor) else a) for a in (points, corners))
    u = random.standard_normal((n, corners.shape[1]))
    u = np.concatenate([u, points - corners.mean(0)])
    u /= np.linalg.norm(u, axis=1, keepdims=True) + 1e-300
    beyond = (points @ u.T - (corners @ u.T).max(0)).max(1)
    return float((beyond > 1e-9 * np.abs(corners).max()).mean())


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    n = size.pick(3000, 20000, 100000)
    names = ("head", "mapped", "w_o", "no_softmax", "mean", "two_heads", "residual", "ffn", "block")
    shares: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(size.pick(8, 24, 50)):
        x = 2.0 * normal(random, 1, T, D)
        one = nn.MultiHeadAttention(D, 1, bias=False).double()
        y, weights = one(x, need_weights=True)
        values = (x @ one.W_V.T)[0]
        mapped = values @ one.W_O.T
        scores = ((x @ one.W_Q.T) @ (x @ one.W_K.T).transpose(1, 2))[0]
        no_softmax = scores / scores.sum(-1, keepdim=True) @ values
        two = nn.MultiHeadAttention(D, 2, bias=False).double()
        together = (x @ two.W_V.T @ two.W_O.T)[0]  # each position's value, behind W_O, as if both heads chose it
        ffn = nn.FeedForward(D).double()
        for name, points, corners in (
            ("head", weights[0, 0] @ values, values),
            ("mapped", y[0], mapped),
            ("w_o", y[0], values),
            ("no_softmax", no_softmax, values),
            ("mean", values.mean(0, keepdim=True), values),
            ("two_heads", two(x)[0], together),
            ("residual", (x + y)[0], mapped),
            ("ffn", (x + ffn(x))[0], x[0]),
            ("block", nn.TransformerBlock(D, 2).double()(x)[0], x[0]),
        ):
            shares[name].append(outside(points, corners, random, n))
    return Result({name: float(np.mean(s)) for name, s in shares.items()}, picture(random))


def picture(random: np.random.Generator) -> dict[str, Any]:
    """The same in the plane: values, and where each part of a block puts the outputs."""
    x = 2.0 * normal(random, 1, 12, 2)
    _, weights = nn.MultiHeadAttention(2, 1).double()(x, need_weights=True)
    w_v, w_o = (tg.tensor(np.linalg.qr(random.standard_normal((2, 2)))[0]) for _ in range(2))  # turned, not flattened
    values = x[0] @ w_v
    head = weights[0, 0] @ values
    after = x + head @ w_o
    block = after + nn.FeedForward(2, 16).double()(after)
    points = {"head": head, "W_O": head @ w_o, "residual": after[0], "ffn": block[0]}
    return {
        "values": values.detach().numpy(),
        "mapped": (values @ w_o).detach().numpy(),
        **{k: v.detach().numpy() for k, v in points.items()},
    }


def hull(points: Any) -> Any:
    """The corners of the convex hull in the plane, in order (monotone chain)."""
    ordered = sorted(map(tuple, points))
    chains = []
    for sequence in (ordered, ordered[::-1]):
        chain: list[Any] = []
        for p in sequence:
            while len(chain) > 1 and np.linalg.det([np.subtract(chain[-1], chain[-2]), np.subtract(p, chain[-2])]) <= 0:
                chain.pop()
            chain.append(p)
        chains += chain[:-1]
    return np.array(chains)


def draw(figure: Any, results: list[Result]) -> None:
    panels = figure.subplots(1, 4)
    data = results[0].data
    steps = (
        ("head", "values", "a head's output", "values"),
        ("W_O", "mapped", "after W_O", "values behind W_O"),
        ("residual", "mapped", "x + attention", "values behind W_O"),
        ("ffn", "mapped", "+ FFN: the block", "values behind W_O"),
    )
    for axes, (name, corners, title, label) in zip(panels, steps, strict=True):
        axes.fill(*hull(data[corners]).T, color="tab:blue", alpha=0.15)
        axes.plot(*data[corners].T, "o", color="tab:blue", ms=5, label=label)
        axes.plot(*data[name].T, "D", color="tab:red", ms=5, label="outputs")
        axes.set(title=title, xticks=[], yticks=[])
        axes.set_aspect("equal", "datalim")
        axes.legend(
            fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=2, columnspacing=0.8, handletextpad=0.1
        )


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    5,
    (
        Check("head", "share outside: a head, of its values' hull", at_most=0),
        Check("mapped", "share outside: one head behind W_O, of the values behind W_O", at_most=0),
        Check("w_o", "share outside: one head behind W_O, of the values in front of it", at_least=0.2),
        Check("two_heads", "share outside: two heads, of their joint values", at_least=0.2),
        Check("residual", "share outside: x + attention, of the values behind W_O", at_least=0.5),
        Check("ffn", "share outside: x + FFN(x), of all x", at_least=0.2),
        Check("block", "share outside: the block, of all x", at_least=0.2),
        Check("no_softmax", "share outside: the head without softmax", at_least=0.2, control=True),
        Check("mean", "share outside: the mean of the values", at_most=0, control=True),
    ),
    run,
    draw,
    size=(13, 4),
)
