"""Induction appears at two layers: the first brings each word its predecessor, the second looks for it (归纳头, induction head)

Claim. To continue … A B … A with B, a word must be found by what stood before it. One layer of attention cannot: its keys (键) hold a word and its place,
not its neighbour. Two layers can: the first writes the previous word into each place, the second looks for the place whose previous word is the present one.

Expected. In sequences of 4 pairs of words drawn anew, then pairs asked for again, two causal blocks name the partner of the word asked for at least 0.95 of the time. One block is
at most 0.5 right (a guess among the 4 partners: 0.25), after at least as many steps (normally twice as many). In the two blocks, a head of the first gives the previous word a weight of at least 0.5 (mean over the partners' places),
and one of the second gives the partner's place at least 0.5.

Control. One block of twice the width (more parameters than the two) is at most 0.5 right. One block whose words come with their predecessors, as the first layer would bring
them, is at least 0.95 right: that is what it lacked. Before training, no head gives these places more than 0.4.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, accuracy, fit

WORDS, PAIRS, ASKED = 16, 4, 3
T = 2 * (PAIRS + ASKED)


class Reader(nn.Module):
    def __init__(self, blocks: int, width: int, with_previous: bool = False):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(T, width)
        self.previous = nn.Embedding(WORDS + 1, width) if with_previous else None
        self.blocks = nn.ModuleList(nn.TransformerBlock(width, 2, causal=True) for _ in range(blocks))
        self.norm, self.read = nn.LayerNorm(width), nn.Linear(width, WORDS)

    def forward(self, ids: Any) -> tg.Tensor:
        """The logits of the word after each of those asked for, (B, ASKED, WORDS)."""
        x = self.words(tg.tensor(ids)) + self.places(tg.arange(T))
        if self.previous is not None:
            before = np.concatenate([np.full((len(ids), 1), WORDS), ids[:, :-1]], 1)
            x = x + self.previous(tg.tensor(before))
        self.inputs = []  # what each block's attention reads
        for block in self.blocks:
            self.inputs.append(block.attention.norm(x).detach())
            x = block(x)
        return self.read(self.norm(x))[:, 2 * PAIRS :: 2]  # type: ignore[no-any-return]


def batch(random: np.random.Generator, n: int) -> tuple[Any, Any, Any]:
    """Pairs, and pairs asked for (maybe one twice); the partners, and the places where they stood first."""
    ids = random.permuted(np.tile(np.arange(WORDS), (n, 1)), axis=1)[:, : 2 * PAIRS]
    asked = random.integers(0, PAIRS, (n, ASKED))
    pairs = ids.reshape(n, PAIRS, 2)[np.arange(n)[:, None], asked]
    return np.concatenate([ids, pairs.reshape(n, -1)], 1), pairs[:, :, 1], 2 * asked + 1


def heads(model: Reader, random: np.random.Generator) -> tuple[float, float, Any]:
    """The largest mean weight that a head of the first block gives to the previous word, of the second to the partner's place."""
    ids, _, places = batch(random, 300)
    with tg.no_grad():
        model(ids)
        first, second = (
            b.attention.f(x, need_weights=True)[1].numpy() for b, x in zip(model.blocks, model.inputs, strict=True)
        )
    partners = np.arange(1, 2 * PAIRS, 2)
    previous = first[:, :, partners, partners - 1].mean((0, 2))
    latest = second[:, :, 2 * PAIRS]  # the first word asked for: its partner stands in one place only
    found = np.take_along_axis(latest, places[:, None, :1], 2).mean((0, 2))
    maps = first[0, previous.argmax()], second[0, found.argmax()]
    return float(previous.max()), float(found.max()), (maps, ids[0])


def trained(model: Reader, steps: int, random: np.random.Generator) -> tuple[float, list[float]]:
    def loss() -> Any:
        ids, partners, _ = batch(random, 32)
        return F.cross_entropy(model(ids).reshape(-1, WORDS), tg.tensor(partners.reshape(-1)))

    losses = fit(model.parameters(), loss, steps, lr=4e-3, warmup=30, until=0.05)
    ids, partners, _ = batch(random, 1000)
    with tg.no_grad():
        return accuracy(model(ids), partners), losses


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    two = Reader(2, 32)
    untrained = max(heads(two, random)[:2])
    right, curves = {}, {}
    right["2 blocks"], curves["2 blocks"] = trained(two, size.pick(1500, 2500, 5000), random)
    equal = size.pick(1, 2, 10) * max(len(curves["2 blocks"]), 250)  # at least as many steps as two blocks needed
    for name, model in (
        ("1 block", Reader(1, 32)),
        ("1 block, twice as wide", Reader(1, 64)),
        ("1 block, predecessors given", Reader(1, 32, with_previous=True)),
    ):
        right[name], curves[name] = trained(model, equal, random)
    previous, partner, maps = heads(two, random)
    values = {
        "two": right["2 blocks"],
        "one": right["1 block"],
        "previous": previous,
        "partner": partner,
        "wide": right["1 block, twice as wide"],
        "given": right["1 block, predecessors given"],
        "untrained": untrained,
        "steps": float(len(curves["2 blocks"])),
    }
    return Result(values, {"curves": curves, "maps": maps})


def draw(figure: Any, results: list[Result]) -> None:
    curve, first, second = figure.subplots(1, 3, width_ratios=(1.3, 1, 1))
    colours = ("tab:blue", "tab:red", "tab:orange", "tab:gray")
    for i, r in enumerate(results):
        for (name, losses), colour in zip(r.data["curves"].items(), colours, strict=True):
            smooth = np.convolve(losses, np.ones(15) / 15, "valid")
            curve.plot(smooth, color=colour, lw=1.2, label=None if i else name)
    curve.axhline(np.log(PAIRS), color="k", ls=":", lw=1)
    place: Any = {"ha": "right", "va": "top", "transform": curve.get_yaxis_transform()}
    curve.text(1, np.log(PAIRS) - 0.03, "a guess of a partner", fontsize=10, **place)
    curve.set(title="loss in training", xlabel="step", ylim=(0, 3.6))
    curve.legend(fontsize=10, loc="upper right")
    (one, two), ids = results[0].data["maps"]
    letters = "".join(chr(ord("A") + i) for i in ids)
    for axes, weights, title in (
        (first, one, "first block: the previous word"),
        (second, two, "second block: the partner"),
    ):
        axes.imshow(weights, cmap="Blues", vmin=0, vmax=1)
        axes.set_xticks(range(T), letters, fontsize=9)
        axes.set_yticks(range(T), letters, fontsize=9)
        axes.axhline(2 * PAIRS - 0.5, color="tab:red", lw=1)
        axes.set(title=title, xlabel="looks at")
    first.set_ylabel("word")


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    16,
    (
        Check("two", "right, 2 blocks", at_least=0.95),
        Check("one", "right, 1 block", at_most=0.5),
        Check("previous", "weight on the previous word, best head of the first block", at_least=0.5),
        Check("partner", "weight on the partner's place, best head of the second", at_least=0.5),
        Check("wide", "right, 1 block of twice the width", at_most=0.5, control=True),
        Check("given", "right, 1 block, predecessors given", at_least=0.95, control=True),
        Check("untrained", "the larger of both weights before training", at_most=0.4, control=True),
    ),
    run,
    draw,
    {"steps": "steps that 2 blocks needed"},
    size=(14, 4.6),
)
