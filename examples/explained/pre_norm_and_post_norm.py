"""Pre-norm trains deep stacks without warm-up; post-norm does not (前置归一化, 后置归一化)

Claim. Post-norm computes norm(x + F(x)), pre-norm x + F(norm(x)). With post-norm every layer's norm stands in the way of the gradient, which
shrinks towards the first blocks, so deep stacks need a warm-up (预热) of the learning rate; pre-norm has a free path (残差连接) and
trains at once. Its stream grows with depth, which the final norm takes back.

Expected. Both orders equal their formulas to 1e-12. In a stack of 48 blocks the gradient of the attention weights in the first 8 blocks (geometric mean) is at
most 0.2 of that in the last 8 with post-norm, and at least 0.5 of it with pre-norm. A first step of 1e-5 in every weight changes the output of 48 post-norm
blocks at least 3 times as much as that of 48 pre-norm blocks. Trained without warm-up to repeat the token
before (chance: 1.79 nats), a deep pre-norm stack (12 blocks; with --full 2 to 48) reaches a loss of at most 0.7 and the deep
post-norm stack stays above 1.4; with warm-up the post-norm stack ends at least 0.2 lower than without. Without the final norm, what the
head reads has at least 2 times the scale with pre-norm in 48 blocks as in 2; with it, 0.9 to 1.1 times.

Control. Two blocks learn it with either order without warm-up, to at most 0.9: the task and the code are not what fails. In 2 blocks the same step changes both outputs alike, 0.5
to 2 times.

Note. If the gradient does not shrink and post-norm still fails, the claim's reason is not the right one. The step tests another: deep post-norm answers small steps with large changes (Liu et al. 2020,
"Understanding the difficulty of training Transformers"), so the first steps must be smaller: a warm-up.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

from .frame import Check, Experiment, Result, Size, fit, gap, normal

VOCAB, T, D = 6, 5, 32


class Model(nn.Module):
    def __init__(self, depth: int, placement: str, final_norm: bool = True):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, D), nn.LearnedPosition(T, D)
        self.blocks = nn.ModuleList(
            nn.TransformerBlock(D, 2, d_ff=2 * D, causal=True, placement=placement) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(D) if placement == "pre" and final_norm else None
        self.head = nn.Linear(D, VOCAB)

    def hidden(self, ids: Any) -> Any:
        x = self.tokens(tg.tensor(ids))
        x = x + self.places(x)
        for block in self.blocks:
            x = block(x)
        return x if self.norm is None else self.norm(x)

    def loss(self, ids: Any) -> Any:
        """Cross-entropy of the token before each."""
        logits = self.head(self.hidden(ids))[:, 1:]
        return F.cross_entropy(logits.reshape(-1, VOCAB), tg.tensor(ids[:, :-1].reshape(-1)))


def gradients(depth: int, placement: str, random: np.random.Generator) -> list[float]:
    """The norm of the gradient of each block's attention weights, before training."""
    model = Model(depth, placement)
    model.loss(random.integers(0, VOCAB, (32, T))).backward()
    return [float(np.linalg.norm(b.attention.f.in_proj.weight.grad.numpy())) for b in model.blocks]


def shift(depth: int, placement: str, random: np.random.Generator) -> float:
    """How much the output changes, relative to its size, by a step of 1e-5 in every weight against its gradient's sign."""
    model, ids = Model(depth, placement), random.integers(0, VOCAB, (32, T))
    before = model.hidden(ids).detach().numpy()
    model.loss(ids).backward()
    for p in model.parameters():
        if p.grad is not None:
            p.detach()[...] -= 1e-5 * tg.tensor(np.sign(p.grad.numpy()))
    change = model.hidden(ids).detach().numpy() - before
    return float(np.linalg.norm(change) / np.linalg.norm(before))


def ends(norms: list[float]) -> float:
    """The geometric mean of the first 8 over that of the last 8."""
    logs = np.log(norms)
    return float(np.exp(logs[:8].mean() - logs[-8:].mean()))


def trained(depth: int, placement: str, warmup: int, random: np.random.Generator, steps: int) -> list[float]:
    model = Model(depth, placement)
    return fit(
        model.parameters(), lambda: model.loss(random.integers(0, VOCAB, (32, T))), steps, lr=5e-3, warmup=warmup
    )


def scale(depth: int, final_norm: bool, random: np.random.Generator) -> float:
    hidden = Model(depth, "pre", final_norm).hidden(random.integers(0, VOCAB, (16, T))).detach().numpy()
    return float(np.sqrt((hidden**2).mean()))


def formula(placement: str, random: np.random.Generator) -> float:
    block = nn.TransformerBlock(D, 2, causal=True, placement=placement).double()
    a: Any = block.attention
    f: Any = block.feed_forward
    x = normal(random, 2, T, D)
    if placement == "pre":
        y = x + a.f(a.norm(x))
        y = y + f.f(f.norm(y))
    else:
        y = a.norm(x + a.f(x))
        y = f.norm(y + f.f(y))
    return gap(y, block(x))


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    depths = size.pick((2, 12), (2, 6, 12), (2, 6, 12, 24, 48))
    deep, steps = depths[-1], size.pick(50, 120, 400)
    norms = {p: gradients(48, p, random) for p in ("pre", "post")}
    curves = {}
    for depth in depths:
        for name in ("pre", "post", "post, warm-up") if depth == deep else ("pre", "post"):
            warmup = steps // 2 if "warm" in name else 0
            curves[name, depth] = trained(depth, name[:4].strip(","), warmup, random, steps)
    end = {key: float(np.mean(curve[-10:])) for key, curve in curves.items()}
    values = {
        "formula": max(formula(p, random) for p in ("pre", "post")),
        "post_gradient": ends(norms["post"]),
        "pre_gradient": ends(norms["pre"]),
        "step": shift(48, "post", random) / shift(48, "pre", random),
        "pre": end["pre", deep],
        "post": end["post", deep],
        "warm": end["post", deep] - end["post, warm-up", deep],
        "unnormed": scale(48, False, random) / scale(2, False, random),
        "normed": scale(48, True, random) / scale(2, True, random),
        "step_shallow": shift(2, "post", random) / shift(2, "pre", random),
        "shallow": max(end["pre", 2], end["post", 2]),
    }
    return Result(values, {"norms": norms, "curves": curves, "end": end, "depths": depths})


def draw(figure: Any, results: list[Result]) -> None:
    left, middle, right = figure.subplots(1, 3)
    depths = results[0].data["depths"]
    colours = {"pre": "tab:blue", "post": "tab:red", "post, warm-up": "tab:orange"}
    for i, r in enumerate(results):
        for name in ("pre", "post"):
            label = None if i else f"{name}-norm"
            left.semilogy(range(1, 49), r.data["norms"][name], color=colours[name], label=label)
            right.plot(depths, [r.data["end"][name, d] for d in depths], "o-", color=colours[name], label=label)
        for name, colour in colours.items():
            middle.plot(r.data["curves"][name, depths[-1]], color=colour, lw=1.2, label=None if i else name)
    left.set(title="gradient by block, before training", xlabel="block")
    middle.set(title=f"training {depths[-1]} blocks: loss", xlabel="step", ylim=(0, 2.9))
    right.set(title="loss at the end, no warm-up", xlabel="blocks", ylim=(0, None))
    for axes in (left, middle, right):
        axes.legend(fontsize=10)


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    13,
    (
        Check("formula", "both orders against their formulas", at_most=1e-12),
        Check("post_gradient", "gradient, first 8 / last 8 of 48 blocks, post-norm", at_most=0.2),
        Check("pre_gradient", "gradient, first 8 / last 8 of 48 blocks, pre-norm", at_least=0.5),
        Check("step", "change of the output by a small step, 48 blocks, post / pre", at_least=3),
        Check("pre", "loss, deep, pre-norm, no warm-up", at_most=0.7),
        Check("post", "loss, deep, post-norm, no warm-up", at_least=1.4),
        Check("warm", "loss, deep, post-norm: fall by warm-up", at_least=0.2),
        Check("unnormed", "scale at the head, 48 / 2 blocks, no final norm", at_least=2),
        Check("normed", "scale at the head, 48 / 2 blocks, final norm", 0.9, 1.1),
        Check("step_shallow", "change of the output by a small step, 2 blocks, post / pre", 0.5, 2, control=True),
        Check("shallow", "loss, 2 blocks, the worse order", at_most=0.9, control=True),
    ),
    run,
    draw,
    size=(13, 4.2),
)
