"""Depth composes: each block may double how far a chain of references is followed (多跳推理, multi-hop)

Claim. A task of k hops (跳) needs depth: each token holds a pointer, and f(f(…f(i))) is asked for. All tokens work at once, so L blocks
may follow 2^L hops (pointer doubling), and the smallest depth for k hops is about log₂ k. It is not one layer for each literal step.

Expected. One hop is solved without attention and 2 hops by 1 block, each at least 0.9 right. One block is at most 0.6 right on 4 hops (chance:
0.125), where 2 blocks are at least 0.9 right. So 2 blocks follow 4 hops, and the layers cannot each have the role of one step.

Control. Without any block, 2 hops are at most 0.3 right. On 4 hops, 1 block with twice the width (more parameters than the 2 blocks)
is at most 0.6 right: it is depth, not size. One block gets at least as many steps as two needed (normally twice as many).

Note. The pointers form one cycle through all tokens, so that no short cut leads back to where a chain began. They are drawn anew for the test.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, accuracy, fit

N = 8


class Chain(nn.Module):
    def __init__(self, blocks: int, width: int):
        super().__init__()
        self.own, self.pointer = nn.Embedding(N, width), nn.Embedding(N, width)
        self.blocks = nn.Sequential(*[nn.TransformerBlock(width, 2) for _ in range(blocks)])
        self.norm, self.read = nn.LayerNorm(width), nn.Linear(width, N)

    def forward(self, pointers: Any) -> tg.Tensor:
        x = self.own(tg.arange(N)) + self.pointer(tg.tensor(pointers))  # token i knows i and f(i)
        return self.read(self.norm(self.blocks(x)))  # type: ignore[no-any-return]


def batch(random: np.random.Generator, n: int, hops: int) -> tuple[Any, Any]:
    """Pointers f in one random cycle through all N tokens, and what f, applied so often, gives for each."""
    cycle = random.permuted(np.tile(np.arange(N), (n, 1)), axis=1)  # one cycle: in short ones, 4 hops may lead back
    pointers = np.empty_like(cycle)
    np.put_along_axis(pointers, cycle, np.roll(cycle, -1, 1), 1)
    reached = pointers
    for _ in range(hops - 1):
        reached = np.take_along_axis(pointers, reached, 1)
    return pointers, reached


def trained(blocks: int, hops: int, width: int, steps: int, random: np.random.Generator) -> tuple[float, list[float]]:
    model = Chain(blocks, width)

    def loss() -> Any:
        pointers, reached = batch(random, 32, hops)
        return F.cross_entropy(model(pointers).reshape(-1, N), tg.tensor(reached.reshape(-1)))

    losses = fit(model.parameters(), loss, steps, lr=3e-3, warmup=30, until=0.03)
    pointers, reached = batch(random, 1000, hops)
    with tg.no_grad():
        return accuracy(model(pointers), reached), losses


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    short = size.pick(200, 300, 1000)
    right = {(2, 4): trained(2, 4, 32, size.pick(1000, 1500, 5000), random)}
    equal = size.pick(1, 2, 10) * len(right[2, 4][1])  # at least as many steps for one block
    plan = {(0, 1): short, (0, 2): short, (1, 1): short, (1, 2): short, (1, 4): equal, (2, 2): short}
    right |= {key: trained(*key, 32, steps, random) for key, steps in plan.items()}
    values = {
        "one_hop": right[0, 1][0],
        "two_hops": right[1, 2][0],
        "four_by_one": right[1, 4][0],
        "four_by_two": right[2, 4][0],
        "no_block": right[0, 2][0],
        "wide": trained(1, 4, 64, equal, random)[0],
    }
    return Result(values, {"right": {k: v[0] for k, v in right.items()}, "curves": {k: v[1] for k, v in right.items()}})


def draw(figure: Any, results: list[Result]) -> None:
    left, right = figure.subplots(1, 2)
    hops = (1, 2, 4)
    for blocks, colour in ((0, "tab:gray"), (1, "tab:red"), (2, "tab:blue")):
        known = [h for h in hops if (blocks, h) in results[0].data["right"]]
        for i, r in enumerate(results):
            heights = [r.data["right"][blocks, h] for h in known]
            label = f"{blocks} block{'s' * (blocks != 1)}"
            left.plot([hops.index(h) for h in known], heights, "o-", color=colour, label=None if i else label)
            if (blocks, 4) in r.data["curves"]:
                smooth = np.convolve(r.data["curves"][blocks, 4], np.ones(15) / 15, "valid")
                right.plot(smooth, color=colour, lw=1.2, label=None if i else label)
    left.axhline(1 / N, color="k", ls=":", lw=1)
    left.set_xticks(range(3), [f"{h} hop{'s' * (h > 1)}" for h in hops])
    left.set(title="right answers", ylim=(0, 1.05))
    right.set(title="4 hops: loss in training", xlabel="step", ylim=(0, None))
    left.text(2, 1 / N, "chance", va="bottom", ha="right", fontsize=10)
    left.legend(loc="lower left", bbox_to_anchor=(0, 0.2))
    right.legend()


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    16,
    (
        Check("one_hop", "1 hop, no block", at_least=0.9),
        Check("two_hops", "2 hops, 1 block", at_least=0.9),
        Check("four_by_one", "4 hops, 1 block", at_most=0.6),
        Check("four_by_two", "4 hops, 2 blocks", at_least=0.9),
        Check("no_block", "2 hops, no block", at_most=0.3, control=True),
        Check("wide", "4 hops, 1 block of twice the width", at_most=0.6, control=True),
    ),
    run,
    draw,
    size=(12, 4.5),
)
