"""Attention is not a fixed linear map: its weights depend on what it reads (注意力权重由内容决定)

Claim. Attention computes A(X) V with A(X) = softmax(X W_Q W_Kᵀ Xᵀ / √d_k), V = X W_V. For a fixed A it is linear in V (线性);
in X it is not, because A changes with X. The scores depend on W_Q and W_K only through the product W_Q W_Kᵀ. Averaging with
fixed weights cannot do what needs the content.

Expected. The layer equals the expanded form to 1e-12, is additive in V to 1e-12, and keeps its output to 1e-9 when W_Q becomes
W_Q M and W_K becomes W_K M⁻ᵀ. A(X) and A(Y) differ by at least 0.05 somewhere; f(X + Y) is at least 0.1 away from
f(X) + f(Y), relative to its largest element. On a task that looks a value up by its key (chance 0.125) attention is right at least
0.95 of the time, trained fixed weights at most 0.5.

Control. M applied to W_Q alone changes the output by at least 0.01. Where the value always stands in one place, the same
fixed weights, trained the same way, are right at least 0.95 of the time.
"""

import math
from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, accuracy, fit, gap, normal

D, HEADS, T, KINDS, WIDTH = 16, 2, 8, 8, 32


def exact(random: np.random.Generator) -> dict[str, float]:
    """What holds to rounding, on an untrained layer in float64."""
    mha = nn.MultiHeadAttention(D, HEADS, bias=False).double()
    x, y, v1, v2 = (2.0 * normal(random, 1, T, D) for _ in range(4))
    f, weights = mha(x, need_weights=True)
    _, other_weights = mha(y, need_weights=True)
    d_k = D // HEADS
    expanded = []
    for h in range(HEADS):
        w_q, w_k, w_v = (
            w[h * d_k : (h + 1) * d_k].T for w in (mha.W_Q, mha.W_K, mha.W_V)
        )  # (D, d_k), as one writes them
        a = F.softmax((x @ w_q) @ (w_k.T @ x.transpose(1, 2)) / math.sqrt(d_k), -1)
        expanded.append(a @ (x @ w_v))
    formula = tg.cat(expanded, -1) @ mha.W_O.T
    additive = gap(mha(x, x, v1 + v2), mha(x, x, v1) + mha(x, x, v2))
    superposition = gap(mha(x) + mha(y), mha(x + y))
    m = np.eye(d_k) + 0.5 * random.standard_normal((d_k, d_k))
    w_q, w_k = mha.W_Q.detach(), mha.W_K.detach()
    for h in range(HEADS):
        w_q[h * d_k : (h + 1) * d_k] = tg.tensor(m.T) @ w_q[h * d_k : (h + 1) * d_k].clone()
    only_q = gap(mha(x), f)
    for h in range(HEADS):
        w_k[h * d_k : (h + 1) * d_k] = tg.tensor(np.linalg.inv(m)) @ w_k[h * d_k : (h + 1) * d_k].clone()
    return {
        "expanded": gap(formula, f),
        "additive": additive,
        "weights": float((weights - other_weights).abs().max().item()),
        "superposition": superposition,
        "both": gap(mha(x), f),
        "only_q": only_q,
    }


class Lookup(nn.Module):
    """Items (key, value) and a query: the query's mixture of the items, through W_V and a read-out."""

    def __init__(self, content: bool):
        super().__init__()
        self.keys, self.values = nn.Embedding(KINDS, WIDTH), nn.Embedding(KINDS, WIDTH)
        self.attention = nn.MultiHeadAttention(WIDTH, 1) if content else None
        self.places = nn.Parameter(tg.zeros(1, 1, T))  # the scores of the fixed weights
        self.project = nn.Linear(WIDTH, WIDTH)
        self.read = nn.Linear(WIDTH, KINDS)

    def forward(self, keys: Any, values: Any, query: Any) -> tuple[tg.Tensor, tg.Tensor]:
        items, asked = self.keys(keys) + self.values(values), self.keys(query)
        if self.attention is not None:
            y, weights = self.attention(tg.cat([items, asked], 1), need_weights=True)
            y, weights = y[:, -1:], weights[:, 0, -1:, :-1]  # what the query gets; it may look at itself, too
        else:
            weights = F.softmax(self.places, -1)
            y = self.project(weights @ items)
        return self.read(F.relu(y))[:, 0], weights


def batch(random: np.random.Generator, n: int, by_content: bool) -> tuple[list[tg.Tensor], Any]:
    keys = random.permuted(np.tile(np.arange(KINDS), (n, 1)), axis=1)[:, :T]
    values = random.integers(0, KINDS, (n, T))
    place = random.integers(0, T, n) if by_content else np.full(n, 2)
    rows = np.arange(n)
    return [tg.tensor(keys), tg.tensor(values), tg.tensor(keys[rows, place][:, None])], values[rows, place]


def learn(random: np.random.Generator, content: bool, by_content: bool, steps: int) -> tuple[float, Any]:
    model = Lookup(content)

    def loss() -> Any:
        inputs, targets = batch(random, 64, by_content)
        return F.cross_entropy(model(*inputs)[0], tg.tensor(targets))

    fit(model.parameters(), loss, steps, lr=1e-2)
    inputs, targets = batch(random, 1000, by_content)
    logits, weights = model(*inputs)
    shown = np.broadcast_to(weights.detach().numpy(), (1000, 1, T))[:6, 0]
    return accuracy(logits, targets), (shown, (inputs[0].numpy() == inputs[2].numpy())[:6])


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    values = exact(random)
    steps = size.pick(250, 600, 2000)
    values["content"], shown = learn(random, True, True, steps)
    values["fixed"], fixed_shown = learn(random, False, True, steps)
    values["fixed_place"], _ = learn(random, False, False, steps)
    return Result(values, {"attention": shown, "fixed": fixed_shown})


def draw(figure: Any, results: list[Result]) -> None:
    left, middle, right = figure.subplots(1, 3, width_ratios=(1, 1, 1))
    for axes, name, title in (
        (left, "attention", "attention: a row each"),
        (middle, "fixed", "fixed weights: one row for all"),
    ):
        weights, hit = results[0].data[name]
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        axes.plot(*np.argwhere(hit)[:, ::-1].T, "s", mfc="none", mec="tab:red", ms=17, mew=2)
        axes.set(title=title, xlabel="item (red: the one asked for)", ylabel="example")
    names = ["attention,\nby key", "fixed weights,\nby key", "fixed weights,\nby place"]
    for i, key in enumerate(("content", "fixed", "fixed_place")):
        right.bar(i, np.mean([r.values[key] for r in results]), color=("tab:blue", "tab:red", "tab:gray")[i])
        right.plot([i] * len(results), [r.values[key] for r in results], "k.", ms=8)
    right.axhline(1 / KINDS, color="k", ls=":", lw=1)
    right.text(2.45, 1 / KINDS, "chance", va="bottom", ha="right", fontsize=10)
    right.set_xticks(range(3), names, fontsize=10)
    right.set(title="right answers", ylim=(0, 1.05))


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    4,
    (
        Check("expanded", "expanded form against the layer, relative", at_most=1e-12),
        Check("additive", "f(V + V') against f(V) + f(V'), A fixed", at_most=1e-12),
        Check("both", "output after W_Q M, W_K M⁻ᵀ, change", at_most=1e-9),
        Check("weights", "largest |A(X) − A(Y)|", at_least=0.05),
        Check("superposition", "f(X + Y) against f(X) + f(Y), relative", at_least=0.1),
        Check("content", "right answers, attention, value found by key", at_least=0.95),
        Check("fixed", "right answers, fixed weights, value found by key", at_most=0.5),
        Check("only_q", "output after W_Q M alone, change", at_least=0.01, control=True),
        Check("fixed_place", "right answers, fixed weights, value always in one place", at_least=0.95, control=True),
    ),
    run,
    draw,
    size=(13, 4.2),
)
