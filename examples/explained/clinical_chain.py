"""A chain of four clinical steps is solved, but no layer has the literal role of one step (多步推理, multi-step reasoning)

Claim. Explanations tell a story: drug (药物), symptom (症状), falling haemoglobin (血红蛋白下降), conclusion (结论); one layer for each step. A deep model
solves such chains. That each layer has the role of one step is a picture, not what is found inside.

Expected. A note names a drug (its risk, one of 4, must be known), a symptom (does it fit the risk?), haemoglobin before and now (does it fall?) among
other words; the conclusion is one of 7. A model of 4 blocks is right at least 0.95 of the time, and so is one of 2: fewer blocks than steps. For each block and each kind
of evidence, no other position may look at that evidence in that block. Evidence has a block of its own if this does at least 0.8 of the harm that hiding it in all blocks
does, and at most 0.2 of that harm to any other kind. If the story were literal, all 3 kinds would have one, in the story's order; at most 1 does.

Control. The same model, built literally (each of the first three blocks may look at one kind of evidence only), is at least 0.95 right, and all 3 kinds have their block: it could be so, and the
measurement would see it. Hiding any evidence in all blocks leaves at most 0.8 right: each step is needed. Without attention at most 0.5 are right.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, accuracy, fit

RISKS, LEVELS, FILLERS, D, BLOCKS = 4, 6, 8, 32, 4
DRUG, SYMPTOM, BEFORE, NOW, OTHER = np.cumsum([0, 2 * RISKS, 2 * RISKS, LEVELS, LEVELS])
QUESTION, T, ANSWERS = OTHER + FILLERS, 8, RISKS + 3
EVIDENCE = ("drug", "symptom", "haemoglobin")


def notes(random: np.random.Generator, n: int) -> tuple[Any, Any, Any]:
    """Words in any order, the question last; which kind of evidence each is (3: none); the conclusion."""
    risk, fits, falls = random.integers(0, RISKS, n), random.random(n) < 0.5, random.random(n) < 0.5
    symptom = np.where(fits, risk, (risk + random.integers(1, RISKS, n)) % RISKS)
    low = random.integers(0, LEVELS - 1, n)
    high = random.integers(low + 1, LEVELS)
    evidence = [DRUG + 2 * risk + random.integers(0, 2, n), SYMPTOM + 2 * symptom + random.integers(0, 2, n)]
    evidence += [BEFORE + np.where(falls, high, low), NOW + np.where(falls, low, high)]
    ids = np.stack([*evidence, *random.integers(OTHER, QUESTION, (T - 5, n))], 1)
    kinds = np.tile([0, 1, 2, 2, *[3] * (T - 5)], (n, 1))
    order = random.permuted(np.tile(np.arange(T - 1), (n, 1)), axis=1)
    ids, kinds = (np.take_along_axis(a, order, 1) for a in (ids, kinds))
    end = np.full((n, 1), QUESTION)
    # Confirmed: stop the drug, by its risk. Fits only: watch. Falls only: another cause. Neither: go on.
    conclusion = np.where(fits & falls, risk, np.where(fits, RISKS, np.where(falls, RISKS + 1, RISKS + 2)))
    return np.concatenate([ids, end], 1), np.concatenate([kinds, 0 * end + 3], 1), conclusion


class Model(nn.Module):
    """Blocks that read a note; `hidden[l]` lists the kinds of evidence that no other position may look at in block l."""

    def __init__(self, blocks: int, literal: bool = False):
        super().__init__()
        self.words = nn.Embedding(QUESTION + 1, D)
        self.blocks = nn.ModuleList(nn.TransformerBlock(D, 2) for _ in range(blocks))
        self.norm, self.read = nn.LayerNorm(D), nn.Linear(D, ANSWERS)
        self.always = [[k for k in range(3) if k != layer] for layer in range(blocks)] if literal else [[]] * blocks

    def forward(self, ids: Any, kinds: Any, hidden: Any = None) -> tg.Tensor:
        x = self.words(tg.tensor(ids))
        for layer, block in enumerate(self.blocks):
            unseen = np.isin(kinds, [*self.always[layer], *(hidden or {}).get(layer, [])])
            x = block(x, mask=tg.tensor((~unseen[:, None, None, :]) | np.eye(T, dtype=bool)))
        return self.read(self.norm(x)[:, -1])  # type: ignore[no-any-return]


def trained(model: Model, random: np.random.Generator, steps: int) -> tuple[Model, float]:
    def loss() -> Any:
        ids, kinds, conclusion = notes(random, 32)
        return F.cross_entropy(model(ids, kinds), tg.tensor(conclusion))

    fit(model.parameters(), loss, steps, lr=4e-3, warmup=20, until=0.02)
    ids, kinds, conclusion = notes(random, 2000)
    with tg.no_grad():
        return model, accuracy(model(ids, kinds), conclusion)


def harm(model: Model, random: np.random.Generator) -> tuple[Any, Any]:
    """How many right answers are lost by hiding each evidence, (blocks, 3): in one block, and (3) in all of them."""
    ids, kinds, conclusion = notes(random, 1500)

    def right(hidden: Any) -> float:
        with tg.no_grad():
            return accuracy(model(ids, kinds, hidden), conclusion)

    whole, layers = right({}), range(len(model.blocks))
    single = [[whole - right({layer: [k]}) for k in range(3)] for layer in layers]
    return np.array(single), np.array([whole - right({layer: [k] for layer in layers}) for k in range(3)])


def own_blocks(single: Any, everywhere: Any) -> list[int]:
    """For each evidence the block that is its own, or -1."""
    share = single / np.maximum(everywhere, 1e-9)
    found = []
    for k in range(3):
        others = np.delete(share, k, 1).max(1)
        own = np.flatnonzero((share[:, k] >= 0.8) & (others <= 0.2))
        found.append(int(own[0]) if len(own) else -1)
    return found


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    steps = size.pick(700, 1000, 3000)
    free, right = trained(Model(BLOCKS), random, steps)
    literal, literal_right = trained(Model(BLOCKS, literal=True), random, steps)
    matrices = {"free": harm(free, random), "literal": harm(literal, random)}
    own = {name: own_blocks(*m) for name, m in matrices.items()}
    values = {
        "four": right,
        "two": trained(Model(2), random, steps)[1],
        "own": float(sum(k >= 0 for k in own["free"])),
        "literal": literal_right,
        "literal_own": float(sum(k >= 0 for k in own["literal"])),
        "needed": right - float(matrices["free"][1].min()),
        "blind": trained(Model(0), random, 100)[1],
    }
    return Result(values, {name: m[0] for name, m in matrices.items()})


def draw(figure: Any, results: list[Result]) -> None:
    shown = [("built literally", results[0].data["literal"])]
    shown += [(f"trained freely, run {i + 1}", r.data["free"]) for i, r in enumerate(results[:3])]
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for axes, (title, matrix) in zip(panels, shown, strict=True):
        image = axes.imshow(matrix, cmap="Oranges", vmin=0, vmax=0.6)
        for (layer, k), value in np.ndenumerate(matrix):
            dark = value > 0.4
            axes.text(k, layer, f"{max(value, 0):.2f}", ha="center", va="center", color="white" if dark else "black")
        axes.set_xticks(range(3), ["drug", "symptom", "Hb"])
        axes.set_yticks(range(len(matrix)), [f"block {i + 1}" for i in range(len(matrix))])
        axes.set_title(title)
    figure.colorbar(image, ax=panels, label="right answers lost", shrink=0.8)


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    16,
    (
        Check("four", "right, 4 blocks", at_least=0.95),
        Check("two", "right, 2 blocks", at_least=0.95),
        Check("own", "kinds of evidence that have a block of their own, of 3", at_most=1),
        Check("literal", "right, built literally", at_least=0.95, control=True),
        Check("literal_own", "kinds with a block of their own, built literally", 3, 3, control=True),
        Check("needed", "right, one evidence hidden in all blocks, the most", at_most=0.8, control=True),
        Check("blind", "right, without attention", at_most=0.5, control=True),
    ),
    run,
    draw,
    size=(14, 4.2),
)
