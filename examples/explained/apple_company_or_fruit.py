"""Whether 苹果 is a company or a fruit is settled by attention, before the FFN sees it (上下文消歧, word sense)

Claim. The embedding of 苹果 (apple) is the same in 苹果发布了手机 (Apple released a phone) and in 苹果很甜 (the apple is sweet). Attention (注意力)
brings the context to it, so that what the FFN (前馈网络) reads already tells the two senses apart.

Expected. A block is trained to name a part of what 苹果 means (屏幕, 电池 of the company's phone; 果皮, 果肉 of the fruit); the sense itself is never
given. A linear probe (线性探针) on the stream at 苹果 finds the sense at most 0.6 of the time before attention, and at least 0.95 of the time
behind it, before the FFN. The answer fits the sense at least 0.95 of the time; without what attention adds, at most 0.6. With what it
added in a sentence of the other sense, everything else unchanged, the answer takes the other sense at least 0.9 of the time.

Control. The probe behind attention, fitted to shuffled senses, finds those at most 0.6 of the time. Putting in what attention added in
another sentence of the same sense keeps the sense at least 0.9 of the time.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, fit

APPLE, COMPANY, FRUIT, FILLERS, T, D = 0, (1, 2, 3, 4), (5, 6, 7, 8), range(9, 20), 6, 32
STAGES = ("before attention", "behind attention", "behind the FFN")


def sentences(random: np.random.Generator, n: int) -> tuple[Any, Any, Any]:
    """Fillers, 苹果, and one word that tells its sense, at random places; the places of 苹果; the senses (0 or 1)."""
    ids = random.choice(FILLERS, (n, T))
    places = random.permuted(np.tile(np.arange(T), (n, 1)), axis=1)
    sense, rows = random.integers(0, 2, n), np.arange(n)
    ids[rows, places[:, 0]] = APPLE
    ids[rows, places[:, 1]] = np.array([COMPANY, FRUIT])[sense, random.integers(0, 4, n)]
    return ids, places[:, 0], sense


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(20, D), nn.LearnedPosition(T, D)
        self.block, self.read = nn.TransformerBlock(D, 2), nn.Linear(D, 4)  # parts 0, 1 of the phone; 2, 3 of the fruit

    def forward(self, ids: Any, places: Any) -> tg.Tensor:
        """The logits of the parts, read off the stream at 苹果, (B, 4)."""
        x = self.tokens(tg.tensor(ids))
        return self.read(self.block(x + self.places(x))[tg.arange(len(ids)), tg.tensor(places)])  # type: ignore[no-any-return]

    def answer(self, stream: tg.Tensor) -> Any:
        """The sense of the likeliest part, from the stream at 苹果 in front of the FFN."""
        with tg.no_grad():
            return self.read(self.block.feed_forward(stream)).numpy().argmax(1) // 2


def stages(model: Model, ids: Any, places: Any) -> list[Any]:
    """The stream at 苹果 before attention, behind it, and behind the FFN, each (B, D)."""
    with (
        tg.no_grad(),
        tg.inspect.record(model, "block", inputs=True) as start,
        tg.inspect.record(model, "block.*") as seen,
    ):
        model(ids, places)
    streams = (start["block"], seen["block.attention"], seen["block.feed_forward"])
    return [s[np.arange(len(ids)), places] for s in streams]


def right(model: Model, ids: Any, places: Any, sense: Any) -> float:
    """The share of answers that fit the sense."""
    with tg.no_grad():
        return float((model(ids, places).numpy().argmax(1) // 2 == sense).mean())


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    model = Model()

    def loss() -> Any:
        ids, places, sense = sentences(random, 64)
        parts = 2 * sense + random.integers(0, 2, 64)
        return F.cross_entropy(model(ids, places), tg.tensor(parts))

    fit(model.parameters(), loss, size.pick(150, 300, 1500), lr=3e-3)
    n = size.pick(1500, 3000, 6000)
    ids, places, sense = sentences(random, n)
    streams = stages(model, ids, places)
    before, behind = streams[:2]
    added = behind - before
    groups = [np.flatnonzero(sense == s) for s in (0, 1)]

    def patched(other: bool) -> Any:
        """The answer's sense when attention's part is taken from another sentence."""
        source = np.array([random.choice(groups[s ^ 1 if other else s]) for s in sense])
        return model.answer(tg.tensor(before + added[source]))

    probes = [tg.inspect.probe(s, sense) for s in streams]
    with tg.inspect.ablate(model, {"block.attention": "all"}):
        without = right(model, ids, places, sense)
    values = {
        "before": probes[0].accuracy,
        "behind": probes[1].accuracy,
        "answer": right(model, ids, places, sense),
        "without": without,
        "other": float((patched(True) == 1 - sense).mean()),
        "shuffled": probes[1].control,
        "same": float((patched(False) == sense).mean()),
    }
    planes = []
    for s in streams:
        centred = s - s.mean(0)
        planes.append(centred[:300] @ np.linalg.svd(centred, full_matrices=False)[2][:2].T)
    return Result(values, {"planes": planes, "sense": sense[:300], "shares": [p.accuracy for p in probes]})


def draw(figure: Any, results: list[Result]) -> None:
    panels = figure.subplots(1, 4)
    data = results[0].data
    for axes, points, title in zip(panels, data["planes"], STAGES, strict=False):
        company, fruit = (points[data["sense"] == s].T for s in (0, 1))
        axes.plot(*company, "o", color="tab:blue", mfc="none", ms=9, mew=1.5, label="company")
        axes.plot(*fruit, ".", color="tab:red", ms=6, label="fruit")
        axes.set(title=title, xticks=[], yticks=[], xlabel="first principal axis")
    panels[0].set_ylabel("second principal axis")
    panels[0].legend(fontsize=10)
    for r in results:
        panels[3].plot(range(3), r.data["shares"], "o-", color="k", lw=1.5)
    panels[3].axhline(0.5, color="k", ls=":", lw=1)
    panels[3].set_xticks(range(3), [s.replace(" ", "\n", 1) for s in STAGES], fontsize=9)
    panels[3].set(title="probe: right senses", ylim=(0, 1.05))


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    3,
    (
        Check("before", "probe before attention, right senses", at_most=0.6),
        Check("behind", "probe behind attention, before the FFN", at_least=0.95),
        Check("answer", "answers that fit the sense", at_least=0.95),
        Check("without", "the same without what attention adds", at_most=0.6),
        Check("other", "answers of the other sense, attention's part exchanged", at_least=0.9),
        Check("shuffled", "probe for shuffled senses", at_most=0.6, control=True),
        Check("same", "answers that keep the sense, part of the same sense", at_least=0.9, control=True),
    ),
    run,
    draw,
    size=(14, 3.8),
)
