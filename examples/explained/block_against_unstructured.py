"""A block generalises where an unstructured network of equal size only remembers: inductive bias (归纳偏置)

Claim. The block treats every position alike and compares positions by their content (注意力). This structure is an assumption about language; where it is right, a block learns
from fewer examples than an unstructured network (全连接网络) with as many parameters, which must learn every place on its own.

Expected. Of 5 items (key, value), the value of the key asked for is to be found. After training on the same 2000 sequences the block is right at least 0.95 of the
time on new ones, a fully connected network of the flattened sequence at most 0.6 (chance: 0.125), given three times as many steps. The block with 500 sequences is ahead of it with 2000 (difference at least 0).

Control. On the sequences that it was trained on, the fully connected network is at least 0.95 right: it is large enough. The parameters differ by a ratio of at most 1.05. Where the value always stands in the third place, the fully connected network is right at least 0.95 of the time: it learns what
needs no such structure. And there a block that is told no places is at most 0.6 right: its bias helps only where it is right.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, accuracy, fit

ITEMS, VALUES, D, SIZES = 5, 8, 32, (125, 500, 2000)


class Embedded(nn.Module):
    """Items and a question as vectors, (B, ITEMS + 1, D), for either network."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values, self.asked = (nn.Embedding(n, D) for n in (ITEMS, VALUES, ITEMS))

    def embed(self, keys: Any, values: Any, asked: Any) -> Any:
        items = self.keys(tg.tensor(keys)) + self.values(tg.tensor(values))
        return tg.cat([items, self.asked(tg.tensor(asked[:, None]))], 1)


class Block(Embedded):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm, self.read = nn.TransformerBlock(D, 2), nn.LayerNorm(D), nn.Linear(D, VALUES)

    def forward(self, *inputs: Any) -> tg.Tensor:
        return self.read(self.norm(self.block(self.embed(*inputs))[:, -1]))  # type: ignore[no-any-return]


class Unstructured(Embedded):
    """Two hidden layers on the flattened sequence."""

    def __init__(self) -> None:
        super().__init__()
        inputs = (ITEMS + 1) * D
        self.layers = nn.Sequential(
            nn.Linear(inputs, 54), nn.GELU(), nn.Linear(54, 36), nn.GELU(), nn.LayerNorm(36), nn.Linear(36, VALUES)
        )

    def forward(self, *inputs: Any) -> tg.Tensor:
        x = self.embed(*inputs)
        return self.layers(x.reshape(len(x), -1))  # type: ignore[no-any-return]


def sequences(random: np.random.Generator, n: int, by_key: bool = True) -> tuple[list[Any], Any]:
    keys = random.permuted(np.tile(np.arange(ITEMS), (n, 1)), axis=1)
    values = random.integers(0, VALUES, (n, ITEMS))
    place = random.integers(0, ITEMS, n)
    rows = np.arange(n)
    return [keys, values, keys[rows, place]], values[rows, place] if by_key else values[:, 2]


def trained(kind: type[Embedded], n: int, by_key: bool, seed: int, steps: int) -> tuple[float, float]:
    """Right answers on n sequences that it is trained on, and on new ones."""
    random, model = np.random.default_rng(seed), kind()
    steps *= 3 if kind is Unstructured and by_key else 1
    inputs, answers = sequences(random, n, by_key)

    def loss() -> Any:
        rows = random.integers(0, n, 64)
        return F.cross_entropy(model(*[a[rows] for a in inputs]), tg.tensor(answers[rows]))

    fit(model.parameters(), loss, steps, lr=6e-3, warmup=20)
    new, new_answers = sequences(random, 2000, by_key)
    with tg.no_grad():
        return accuracy(model(*inputs), answers), accuracy(model(*new), new_answers)


def run(seed: int, size: Size) -> Result:
    steps = size.pick(250, 400, 3000)
    kinds: dict[str, type[Embedded]] = {"block": Block, "unstructured": Unstructured}
    sizes = size.pick(SIZES[1:], SIZES)
    right = {name: [trained(kind, n, True, seed, steps) for n in sizes] for name, kind in kinds.items()}
    counts = [kind().num_parameters() for kind in kinds.values()]
    values = {
        "block": right["block"][-1][1],
        "unstructured": right["unstructured"][-1][1],
        "remembered": right["unstructured"][-1][0],
        "fewer": right["block"][-2][1] - right["unstructured"][-1][1],
        "parameters": max(counts) / min(counts),
        "place": trained(Unstructured, sizes[-1], False, seed, steps)[1],
        "no_places": trained(Block, sizes[-1], False, seed, steps)[1],
    }
    return Result(values, {"right": right, "sizes": sizes})


def draw(figure: Any, results: list[Result]) -> None:
    left, right = figure.subplots(1, 2, width_ratios=(1.4, 1))
    for i, r in enumerate(results):
        for name, colour, label in (
            ("block", "tab:blue", "Transformer block"),
            ("unstructured", "tab:red", "fully connected"),
        ):
            known, new = zip(*r.data["right"][name], strict=True)
            left.semilogx(r.data["sizes"], new, "o-", color=colour, label=None if i else f"{label}: new sequences")
            left.semilogx(r.data["sizes"], known, "o:", color=colour, label=None if i else f"{label}: trained on")
    names = {"block": "block", "unstructured": "fully\nconnected", "no_places": "block", "place": "fully\nconnected"}
    for k, (key, colour) in enumerate(zip(names, ("tab:blue", "tab:red") * 2, strict=True)):
        shares = [r.values[key] for r in results]
        x = k + 0.6 * (k > 1)
        right.bar(x, np.mean(shares), color=colour)
        right.plot([x] * len(shares), shares, "k.")
    right.set_xticks([0, 1, 2.6, 3.6], list(names.values()), fontsize=10)
    right.text(0.5, 1.04, "by its key", ha="center")
    right.text(3.1, 1.04, "in the third place", ha="center")
    for axes in (left, right):
        axes.axhline(1 / VALUES, color="k", ls=":", lw=1)
        axes.set_ylim(0, 1.12)
    sizes = results[0].data["sizes"]
    left.text(sizes[-1], 1 / VALUES, "chance", va="bottom", ha="right", fontsize=10)
    left.set_xticks(sizes, [str(n) for n in sizes])
    left.minorticks_off()
    left.set(title="right answers: the value of a key", xlabel="sequences trained on")
    left.legend(fontsize=10, loc="center left")
    right.set(title=f"right on new ones, {sizes[-1]} trained on")


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    15,
    (
        Check("block", "block, 2000 sequences: right on new ones", at_least=0.95),
        Check("unstructured", "fully connected, 2000 sequences: right on new ones", at_most=0.6),
        Check("fewer", "block with 500 less fully connected with 2000", at_least=0),
        Check("remembered", "fully connected: right on those trained on", at_least=0.95, control=True),
        Check("parameters", "parameters, larger / smaller", at_most=1.05, control=True),
        Check("place", "value in the third place, fully connected: right", at_least=0.95, control=True),
        Check("no_places", "value in the third place, block without places: right", at_most=0.6, control=True),
    ),
    run,
    draw,
    size=(12, 4.5),
)
