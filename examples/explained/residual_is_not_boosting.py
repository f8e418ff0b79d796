"""A residual connection is not boosting: no block is trained on what the ones before it left over (残差连接, 梯度提升)

Claim. Both are sums of stages. In boosting (XGBoost, squared loss) stage m is fitted to the residual error (残差) y − f_{m−1}, the stages before it being
finished. In a residual network "residual" is the form x + F(x): no block has a target of its own, all are trained jointly (联合训练) on one loss at the end.

Expected. The first of 3 boosted trees and the first of 6 differ by 0: it does not know the later ones. The first block's output, trained from the same start, differs by at
least 0.2 of its size when 6 blocks are trained and not 3. Read out behind the first block, the jointly trained network has at least 1.5 times the error of the same
block trained for that; read out at the end, at most 0.5 times. When the last stage is bad, at least 0.8 of the harm stays in the
boosted sum, where nobody comes after; at most 0.5 in the joint network, whose blocks in front learn to undo it. When the third of six stages is bad,
at most 0.4 stays in either: there, stages come after.

Control. The same network, trained stage by stage, behaves as boosting does: its first block differs by 0, and a bad last block keeps at least 0.8 of its harm. So it is the
training that makes boosting, not the trees. Each tree lowers the error (to at most 1 times that before), none of its blocks raises it (at most 1.05 times). All three learn: their errors are at most 0.2.

Note. A bad stage adds a fixed random function of standard deviation 0.5 (y has 1); harm is what it adds to the mean squared error, over 0.5². Errors are those in training: the
question is who is trained for what. One likeness is in the table: read out after each block, the joint network's error may fall, too.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn

from .frame import Check, Experiment, Result, Size, fit, gap

ROWS, INPUTS, STAGES, WIDTH, BAD = 256, 5, 6, 16, 0.5
Stage = Callable[[Any], Any]


def data(random: np.random.Generator) -> tuple[Any, Any]:
    """Friedman's first function of five inputs, of mean 0 and variance 1."""
    x = random.random((ROWS, INPUTS))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, (y - y.mean()) / y.std()


def noise(x: Any, random: np.random.Generator) -> Stage:
    """A bad stage: a fixed random function of the input, of standard deviation BAD on x."""
    a, b, c = random.standard_normal((INPUTS, 16)) * 2, random.standard_normal(16), random.standard_normal(16)
    raw = np.tanh(x @ a + b) @ c
    return lambda t: BAD * (np.tanh(t @ a + b) @ c - raw.mean()) / raw.std()


# 1. Boosting: trees, one after the other, each fitted to what is left.


def tree(x: Any, left_over: Any, depth: int) -> Stage:
    """The regression tree that greedily lowers the squared error."""
    mean, best, best_gain = float(left_over.mean()), None, 1e-9
    if depth and len(x) >= 10:
        for i in range(x.shape[1]):
            order = np.argsort(x[:, i])
            sums, n = np.cumsum(left_over[order])[:-1], np.arange(1, len(x))
            gains = (sums - n * mean) ** 2 * len(x) / (n * (len(x) - n))  # how much the squared error falls
            k = int(gains[4:-4].argmax()) + 4
            if gains[k] > best_gain:
                best, best_gain = (i, x[order[k : k + 2], i].mean()), gains[k]
    if best is None:
        return lambda t: np.full(len(t), mean)
    i, cut = best
    low = x[:, i] < cut
    left, right = tree(x[low], left_over[low], depth - 1), tree(x[~low], left_over[~low], depth - 1)
    return lambda t: np.where(t[:, i] < cut, left(t), right(t))


def boosted(x: Any, y: Any, stages: int, bad: int | None = None, noise: Stage | None = None) -> list[Any]:
    """The prediction after 0, 1, 2, … stages; stage `bad` is not fitted but given."""
    f = [np.zeros(len(y))]
    for m in range(stages):
        stage = noise if m == bad and noise else tree(x, y - f[-1], 4)
        f.append(f[-1] + stage(x))
    return f


# 2. The residual network: blocks x + F(x), read out by one fixed row.


class Network(nn.Module):
    """All learning is in the blocks; block `bad` adds its noise along the row that is read."""

    def __init__(self, stages: int, bad: int | None = None, noise: Stage | None = None):
        super().__init__()
        self.row = tg.tensor(np.full((1, WIDTH), WIDTH**-0.5, "f"))
        self.enter = nn.Linear(INPUTS, WIDTH)
        self.blocks = nn.ModuleList(nn.Residual(nn.FeedForward(WIDTH)) for _ in range(stages))
        self.bad, self.noise = bad, noise

    def step(self, i: int, stream: Any, x: Any) -> Any:
        if i == self.bad and self.noise is not None:
            return stream + tg.tensor(self.noise(x)[:, None].astype("f")) @ self.row
        return self.blocks[i](stream)

    def read(self, stream: Any) -> Any:
        return stream @ self.row.T


def train(net: Network, x: Any, y: Any, steps: int, jointly: bool) -> list[Any]:
    """The prediction after 0, 1, 2, … blocks: all trained on the last one's error, or each on its own, in turn."""
    target = tg.tensor(y[:, None].astype("f"))
    streams = [net.enter(tg.tensor(x.astype("f"))).detach()]
    good = [i for i in range(len(net.blocks)) if i != net.bad]
    if jointly:

        def joint() -> Any:
            stream = streams[0]
            for i in range(len(net.blocks)):
                stream = net.step(i, stream, x)
            return ((net.read(stream) - target) ** 2).mean()

        fit([p for i in good for p in net.blocks[i].parameters()], joint, steps, lr=6e-3, warmup=20)
    for i in range(len(net.blocks)):

        def alone(i: int = i) -> Any:
            return ((net.read(net.step(i, streams[i], x)) - target) ** 2).mean()

        if not jointly and i in good:
            fit(net.blocks[i].parameters(), alone, steps // 2, lr=6e-3, warmup=10)
        streams.append(net.step(i, streams[i], x).detach())
    return [net.read(s).numpy()[:, 0] for s in streams]


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    x, y = data(random)
    bad, steps = noise(x, random), size.pick(250, 500, 3000)

    def network(stages: int, jointly: bool, place: int | None = None) -> list[Any]:
        tg.manual_seed(seed)
        return train(Network(stages, place, bad), x, y, steps, jointly)

    kinds: dict[str, Callable[..., list[Any]]] = {
        "trees": lambda stages, place=None: boosted(x, y, stages, place, bad),
        "stagewise": lambda stages, place=None: network(stages, False, place),
        "joint": lambda stages, place=None: network(stages, True, place),
    }
    values: dict[str, float] = {}
    curves = {}
    for name, fitted in kinds.items():
        few, predictions = fitted(STAGES // 2), {place: fitted(STAGES, place) for place in (None, STAGES - 1, 2)}
        sound = predictions[None]
        errors = {place: [float(((f - y) ** 2).mean()) for f in fs] for place, fs in predictions.items()}
        values |= {
            f"{name}_first": gap(few[1] - few[0], sound[1] - sound[0]),
            f"{name}_step": max(b / a for a, b in zip(errors[None], errors[None][1:], strict=False)),
            f"{name}_last": (errors[STAGES - 1][-1] - errors[None][-1]) / BAD**2,
            f"{name}_third": (errors[2][-1] - errors[None][-1]) / BAD**2,
            f"{name}_error": errors[None][-1],
        }
        curves[name], curves[f"{name}, bad"] = errors[None], errors[STAGES - 1]
    values["behind_first"] = curves["joint"][1] / curves["stagewise"][1]
    values["at_end"] = curves["joint"][-1] / curves["stagewise"][-1]
    values["largest"] = max(values.pop(f"{name}_error") for name in kinds)
    return Result(values, {"curves": curves})


def draw(figure: Any, results: list[Result]) -> None:
    panels = figure.subplots(1, 3, width_ratios=(1, 1, 0.9))
    names = {"trees": "trees, boosted", "stagewise": "blocks, stage by stage", "joint": "blocks, jointly"}
    colours = dict(zip(names, ("tab:orange", "tab:gray", "tab:blue"), strict=True))
    for i, r in enumerate(results):
        for j, (name, label) in enumerate(names.items()):
            for axes, key in ((panels[0], name), (panels[1], f"{name}, bad")):
                axes.semilogy(r.data["curves"][key], "os^"[j] + "-", color=colours[name], label=None if i else label)
    for j, name in enumerate(names):
        for k, where in enumerate(("last", "third")):
            harm = [r.values[f"{name}_{where}"] for r in results]
            panels[2].bar(k + 0.26 * (j - 1), np.mean(harm), 0.24, color=colours[name])
            panels[2].plot([k + 0.26 * (j - 1)] * len(harm), harm, "k.")
    panels[0].set(title="error, read out after each stage", xlabel="stages")
    panels[1].set(title="the same; stage 6 is bad", xlabel="stages")
    panels[1].sharey(panels[0])
    panels[0].legend(fontsize=10, loc="lower left")
    panels[2].axhline(1, color="k", ls=":", lw=1)
    panels[2].set_xticks([0, 1], ["last stage\nis bad", "third stage\nis bad"])
    panels[2].set(title="share of the harm that stays", ylim=(None, 1.3))


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    11,
    (
        Check("trees_first", "first of 3 trees and first of 6: difference", at_most=0),
        Check("joint_first", "first of 3 blocks and first of 6, joint: difference", at_least=0.2),
        Check("behind_first", "error behind the first block, joint / trained for that", at_least=1.5),
        Check("at_end", "error at the end, joint / stage by stage", at_most=0.5),
        Check("trees_last", "last stage bad: harm that stays, trees", at_least=0.8),
        Check("joint_last", "last stage bad: harm that stays, joint network", at_most=0.5),
        Check("trees_third", "third stage bad: harm that stays, trees", at_most=0.4),
        Check("joint_third", "third stage bad: harm that stays, joint network", at_most=0.4),
        Check("stagewise_first", "first of 3 blocks and of 6, stage by stage: difference", at_most=0, control=True),
        Check("stagewise_last", "last stage bad: harm that stays, stage by stage", at_least=0.8, control=True),
        Check("trees_step", "error after a tree / before it, the largest", at_most=1, control=True),
        Check(
            "stagewise_step", "error after a block / before it, stage by stage, the largest", at_most=1.05, control=True
        ),
        Check("largest", "error at the end, the largest of three", at_most=0.2, control=True),
    ),
    run,
    draw,
    {
        "joint_step": "error after a block / before it, joint, the largest",
        "stagewise_third": "third stage bad: harm that stays, stage by stage",
    },
    size=(13, 4.2),
)
