"""One head makes one mixture; several heads keep several relations apart (多头注意力, multi-head attention)

Claim. In 苹果发布了新款手机，它的屏幕很亮 the word 它 (it) must find both what it refers to (指代) and whose attribute (属性) follows: two relations at once.
One head of full width mixes what it finds into one sum; several heads keep it apart, for the same number of parameters, and
MultiHead(x) = Σ_i head_i W_O,i. Which head takes which relation is learned, not assigned.

Expected. The number of parameters with 1, 2 and 4 heads differs by 0. The layer equals the sum over its heads to 1e-12. On a task in
which one query must fetch two values by two keys and say which is which (both right by chance: 0.016), 2 heads are right at least
0.95 of the time, 1 head at most 0.7 after the same training. After training with 2 heads, one looks for the first relation with a weight of at
least 0.8 and the other for the second with at least 0.8. Trained again from the same start with the two heads' weights exchanged, they have
exchanged their roles (each weight again at least 0.8).

Control. When one relation is asked for, 1 head is right at least 0.95 of the time: it is the second relation that it lacks. Before
training, no head gives any relation a weight of more than 0.5.

Note. How one head fails is measured, too: it need not mix. Its weights on the two relations are in the table; when one is near 1 it has
given up the other.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, fit, gap, normal

ITEMS, VALUES, D = 5, 8, 32


class Fetch(nn.Module):
    """Items (a key of kind A, a key of kind B, a value), and a query of one key of each kind."""

    def __init__(self, heads: int):
        super().__init__()
        self.a, self.b, self.value = (nn.Embedding(n, D) for n in (ITEMS, ITEMS, VALUES))
        self.query_a, self.query_b = nn.Embedding(ITEMS, D), nn.Embedding(ITEMS, D)
        self.attention = nn.MultiHeadAttention(D, heads)
        self.read = nn.ModuleList(nn.Linear(D, VALUES) for _ in range(2))

    def forward(self, a: Any, b: Any, value: Any, query: Any) -> list[tg.Tensor]:
        items = self.a(tg.tensor(a)) + self.b(tg.tensor(b)) + self.value(tg.tensor(value))
        asked = self.query_a(tg.tensor(query[:, :1])) + self.query_b(tg.tensor(query[:, 1:]))
        y = self.attention(tg.cat([items, asked], 1))
        return [read(y[:, -1]) for read in self.read]


def batch(random: np.random.Generator, n: int) -> tuple[list[Any], Any, Any]:
    """Inputs; the two places asked for, always different; the two values there."""
    a, b = (random.permuted(np.tile(np.arange(ITEMS), (n, 1)), axis=1) for _ in range(2))
    value = random.integers(0, VALUES, (n, ITEMS))
    places = random.permuted(np.tile(np.arange(ITEMS), (n, 1)), axis=1)[:, :2]
    rows = np.arange(n)
    query = np.stack([a[rows, places[:, 0]], b[rows, places[:, 1]]], 1)
    return [a, b, value, query], places, np.take_along_axis(value, places, 1)


def trained(heads: int, seed: int, steps: int, relations: int = 2, exchange: bool = False) -> tuple[float, Any, Any]:
    """Right answers; and the mean weight that head h gives to the place of relation r, (heads, 2), after and before."""
    tg.manual_seed(seed)
    model, random = Fetch(heads), np.random.default_rng(seed)
    if exchange:
        half = D // 2
        swap = np.r_[half:D, 0:half]
        state = model.state_dict()
        for name in ("attention.in_proj.weight", "attention.in_proj.bias"):
            state[name] = tg.tensor(state[name].numpy()[np.concatenate([swap, D + swap, 2 * D + swap])])
        state["attention.out_proj.weight"] = tg.tensor(state["attention.out_proj.weight"].numpy()[:, swap])
        model.load_state_dict(state)
    test, places, answers = batch(np.random.default_rng(seed + 1), 1000)

    def looks() -> tuple[Any, Any]:
        with tg.no_grad(), tg.inspect.attention_maps(model) as maps:
            logits = model(*test)
        return logits, np.stack([maps.weight("attention", -1, places[:, r]).mean(0) for r in range(2)], 1)

    before = looks()[1]

    def loss() -> tg.Tensor:
        inputs, _, targets = batch(random, 32)
        logits = model(*inputs)
        return sum((F.cross_entropy(logits[r], tg.tensor(targets[:, r])) for r in range(relations)), tg.tensor(0.0))

    fit(model.parameters(), loss, steps, lr=1e-2)
    logits, share = looks()
    right = [logits[r].numpy().argmax(1) == answers[:, r] for r in range(relations)]
    return float(np.logical_and.reduce(right).mean()), share, before


def sum_of_heads(random: np.random.Generator) -> float:
    mha, d_k = nn.MultiHeadAttention(D, 4).double(), D // 4
    x = normal(random, 2, 6, D)
    y, weights = mha(x, need_weights=True)
    v = x @ mha.W_V.T
    parts = [weights[:, i] @ v[..., i * d_k : (i + 1) * d_k] @ mha.W_O[:, i * d_k : (i + 1) * d_k].T for i in range(4)]
    return gap(parts[0] + parts[1] + parts[2] + parts[3], y)


def run(seed: int, size: Size) -> Result:
    steps = size.pick(200, 500, 3000)
    one, one_share, _ = trained(1, seed, steps)
    two, share, before = trained(2, seed, steps)
    _, exchanged, _ = trained(2, seed, steps, exchange=True)
    single, _, _ = trained(1, seed, steps, relations=1)
    first = int(share[1, 0] > share[0, 0])  # the head that looks for relation A
    counts = [nn.MultiHeadAttention(D, h).num_parameters() for h in (1, 2, 4)]
    values = {
        "parameters": max(counts) - min(counts),
        "sum": sum_of_heads(np.random.default_rng(seed)),
        "two": two,
        "one": one,
        "a": share[first, 0],
        "b": share[1 - first, 1],
        "exchanged": min(exchanged[1 - first, 0], exchanged[first, 1]),
        "single": single,
        "before": before.max(),
        "one_more": one_share.max(),
        "one_less": one_share.min(),
    }
    return Result(values, {"share": share, "exchanged": exchanged, "one": one_share, "before": before})


def draw(figure: Any, results: list[Result]) -> None:
    panels = figure.subplots(1, 4 + min(len(results), 3), width_ratios=[1.6] + [1] * (3 + min(len(results), 3)))
    names = [("one", "1 head"), ("two", "2 heads"), ("single", "1 head,\none relation")]
    for i, (key, _) in enumerate(names):
        answers = [r.values[key] for r in results]
        panels[0].bar(i, np.mean(answers), color=("tab:red", "tab:blue", "tab:gray")[i])
        panels[0].plot([i] * len(answers), answers, "k.")
    panels[0].set_xticks(range(3), [label for _, label in names], fontsize=10)
    panels[0].set(title="right answers", ylim=(0, 1.05))
    maps = [("1 head", results[0].data["one"]), ("2 heads, before", results[0].data["before"])]
    maps += [(f"seed {i + 1}", r.data["share"]) for i, r in enumerate(results[:3])]
    maps += [("seed 1,\nheads exchanged", results[0].data["exchanged"])]
    for axes, (title, share) in zip(panels[1:], maps, strict=True):
        axes.imshow(share, cmap="Blues", vmin=0, vmax=1)
        for (h, r), value in np.ndenumerate(share):
            axes.text(
                r, h, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.6 else "black", fontsize=11
            )
        axes.set_xticks([0, 1], ["A", "B"])
        axes.set_yticks(range(len(share)), [f"head {h + 1}" for h in range(len(share))], fontsize=9)
        axes.set_title(title, fontsize=11)


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    3,
    (
        Check("parameters", "parameters with 1, 2, 4 heads: difference", at_most=0),
        Check("sum", "layer against Σ head_i W_O,i", at_most=1e-12),
        Check("two", "both right, 2 heads", at_least=0.95),
        Check("one", "both right, 1 head of full width", at_most=0.7),
        Check("a", "weight on relation A, the head that looks for A", at_least=0.8),
        Check("b", "weight on relation B, the other head", at_least=0.8),
        Check("exchanged", "the smaller weight in exchanged roles", at_least=0.8),
        Check("single", "right, 1 head, one relation asked for", at_least=0.95, control=True),
        Check("before", "largest weight before training", at_most=0.5, control=True),
    ),
    run,
    draw,
    {"one_more": "1 head: weight on the relation it prefers", "one_less": "1 head: weight on the other relation"},
    size=(15, 3.6),
)
