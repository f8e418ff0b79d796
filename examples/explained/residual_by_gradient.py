"""The residual connection: dy/dx = I + dF/dx, so the gradient arrives; the information need not (残差连接, 恒等路径)

Claim. y = x + F(x) has the Jacobian (雅可比矩阵) I + dF/dx: whatever F does, the gradient (梯度) itself comes back, too, through any number of blocks. What is added to x is
the output of W_O, not Q, K or V. F = 0 is easy to learn, so a block that is not needed does no harm. It is no guarantee: F = −x loses everything.

Expected. Of a Transformer block in both norm orders, I + dF/dx differs from finite differences by at most 1e-6. Through 64 blocks, the gradient at
the input over that at the end is at most 1e-12 without skips, at least 0.5 with them and with pre-norm; after 30 steps of training, at least 0.9 of the loss is left without skips, at
most 0.7 with pre-norm. With weights drawn so that 64 plain blocks hold the scale, it is directions that are lost: the median singular value of
dy/dx is at most 1e-6 of the largest, with pre-norm at least 0.05. What attention adds differs from the output of W_O by 0 and from Q, K and V by at least 0.3; with W_O = 0
the block's first half changes nothing (0). Trained to give back x, 16 residual blocks end at a loss of at most 0.02, 16 plain ones at least at 0.5. With F = −x the
gradient is 0; a block trained to forget half of x passes at most 0.1 of the gradient to that half that it passes to the other, and its certificate, I + dF/dx to 1e-6, still holds.

Control. One plain block keeps at least 0.05 of the gradient and learns y = x to at most 0.1: plain blocks work, depth undoes them. With W_Q = W_K = 0, attention still adds at least
0.1 of what it did before: W_Q and W_K only choose.

Note. The depth sweep is that of examples/residual_identity.py, which has more kinds of it.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.inspect.identity import jacobian

from ..residual_identity import WIDTH, Network, nothing_survives, sweep
from .frame import Check, Experiment, Result, Size, fit, gap, normal

D, DEEP, KINDS = 16, 64, ("plain", "residual", "pre-norm")


def certificate(placement: str, random: np.random.Generator) -> float:
    """The largest error of I + dF/dx, and of the block's (I + J2)(I + J1), against finite differences."""
    block = nn.TransformerBlock(4, 2, causal=True, placement=placement).double()
    found = tg.inspect.identity_path(block, normal(random, 1, 3, 4), show=False)
    return float(max([found.product or 0.0, *(r.differences for r in found.residuals)]))


def hold_the_scale(net: Network) -> Network:
    """Draw a plain network's weights so that a block keeps the size of what it reads: He's initialisation, for GELU."""
    for block in net.blocks:
        nn.init.normal_(block.W1.weight, std=WIDTH**-0.5)
        nn.init.normal_(block.W2.weight, std=(0.425 * block.d_ff) ** -0.5)  # E[GELU(z)²] = 0.425
    return net


def singular(net: Network, random: np.random.Generator) -> Any:
    """The singular values of dy/dx through all blocks, over the largest."""
    found = np.linalg.svd(jacobian(net.double().stream, random.standard_normal((1, WIDTH))))[1]
    return found / found[0]


def added(random: np.random.Generator) -> dict[str, float]:
    """What the first Residual of a block adds, against what its attention computes on the way."""
    block: Any = nn.TransformerBlock(D, 2).double()
    mha = block.attention.f
    seen: dict[str, Any] = {}
    handle = mha.out_proj.register_forward_hook(lambda module, args, output: seen.update(out=output))
    x = normal(random, 2, 6, D)
    increment = block.attention(x) - x
    handle.remove()
    read = block.attention.norm(x)
    values = {"w_o": gap(x + seen["out"], block.attention(x))}
    values["qkv"] = min(gap(read @ w.T, increment) for w in (mha.W_Q, mha.W_K, mha.W_V))
    nn.init.zeros_(mha.in_proj.weight.detach()[: 2 * D])
    values["uniform"] = float((block.attention(x) - x).abs().max().item() / increment.abs().max().item())
    nn.init.zeros_(mha.out_proj.weight)
    values["no_w_o"] = gap(block.attention(x), x)
    return values


def give_back(kind: str, depth: int, random: np.random.Generator, steps: int, lr: float = 5e-3) -> list[float]:
    """The losses of some blocks that learn y = x."""
    net = Network(kind, depth)
    net = hold_the_scale(net) if kind == "plain" else net

    def loss() -> Any:
        x = tg.tensor(random.standard_normal((64, WIDTH)).astype("f"))
        return ((net.stream(x) - x) ** 2).mean()

    return fit(net.blocks.parameters(), loss, steps, lr=lr, warmup=10)


def forgetful(random: np.random.Generator, steps: int) -> tuple[Any, float]:
    """A residual block that has learned to keep the second half of x only: its mean |dy/dx|, and its certificate's error."""
    block = nn.Residual(nn.FeedForward(D, activation="gelu"))

    def loss() -> Any:
        x = random.standard_normal((128, D)).astype("f")
        return ((block(tg.tensor(x)) - tg.tensor(x * (np.arange(D) >= D // 2))) ** 2).mean()

    fit(block.parameters(), loss, steps, lr=1e-2)
    block.double()
    matrices = [jacobian(block, random.standard_normal((1, D))) for _ in range(20)]
    found = tg.inspect.identity_path(block, normal(random, 1, D), show=False)
    return np.abs(matrices).mean(0), found.residuals[0].differences


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    depths = size.pick((1, DEEP), (1, 2, 4, 8, 16, 32, DEEP))
    readings, _ = sweep(depths, 0, KINDS, seed)
    gradient = {(r.kind, r.depth): r.gradient for r in readings}
    first, last = sweep((DEEP,), 30, ("plain", "pre-norm"), seed)
    learned = {a.kind: b.loss / a.loss for a, b in zip(first, last, strict=True)}
    spectra = {
        "plain": singular(hold_the_scale(Network("plain", DEEP)), random),
        "pre-norm": singular(Network("pre-norm", DEEP), random),
    }
    steps = size.pick(150, 250, 2000)
    curves = {kind: give_back(kind, 16, random, steps) for kind in ("plain", "residual")}
    matrix, error = forgetful(random, size.pick(300, 800, 3000))
    values = {
        "certified": max(certificate(p, random) for p in ("pre", "post")),
        "plain": gradient["plain", DEEP],
        "residual": min(gradient[k, DEEP] for k in ("residual", "pre-norm")),
        "plain_learned": learned["plain"],
        "pre_learned": learned["pre-norm"],
        "plain_median": float(np.median(spectra["plain"])),
        "pre_median": float(np.median(spectra["pre-norm"])),
        **added(random),
        "back_residual": float(np.mean(curves["residual"][-10:])),
        "back_plain": float(np.mean(curves["plain"][-10:])),
        "nothing": nothing_survives(),
        "forgotten": float(np.linalg.norm(matrix[:, : D // 2]) / np.linalg.norm(matrix[:, D // 2 :])),
        "certified_still": error,
        "one_block": gradient["plain", 1],
        "one_back": float(np.mean(give_back("plain", 1, random, 2 * steps, 1e-2)[-10:])),
    }
    return Result(
        values, {"gradient": gradient, "depths": depths, "curves": curves, "spectra": spectra, "matrix": matrix}
    )


def draw(figure: Any, results: list[Result]) -> None:
    panels = figure.subplots(1, 4, width_ratios=(1.1, 1, 1, 0.8))
    colours = {"plain": "tab:red", "residual": "tab:blue", "pre-norm": "tab:cyan"}
    names = {"plain": "F(x)", "residual": "x + F(x)", "pre-norm": "x + F(norm(x))"}
    for i, r in enumerate(results):
        for kind, colour in colours.items():
            label, depths = None if i else names[kind], r.data["depths"]
            style = {"residual": "s-", "pre-norm": "o--"}.get(kind, "o-")
            panels[0].loglog(depths, [r.data["gradient"][kind, d] for d in depths], style, color=colour, label=label)
            if kind in r.data["spectra"]:
                panels[1].semilogy(range(1, WIDTH + 1), r.data["spectra"][kind], color=colour, label=label)
            if kind in r.data["curves"]:
                panels[2].semilogy(r.data["curves"][kind], color=colour, lw=1.2, label=label)
    panels[0].set_xscale("log", base=2)
    panels[0].set_xticks(results[0].data["depths"], results[0].data["depths"])
    panels[0].set(title="gradient, input / end,\nbefore training", xlabel="blocks")
    panels[1].set(title=f"dy/dx through {DEEP} blocks:\nsingular values / largest", xlabel="number", ylim=(1e-18, 3))
    panels[2].set(title="16 blocks learn y = x:\nloss", xlabel="step")
    for axes in panels[:3]:
        axes.legend(fontsize=10, loc="lower left" if axes is not panels[2] else "center right")
    image = panels[3].imshow(results[0].data["matrix"], cmap="Blues", vmin=0, vmax=1)
    panels[3].set(title="a block that has\nlearned to forget: |dy/dx|", xlabel="x", ylabel="y", xticks=[], yticks=[])
    figure.colorbar(image, ax=panels[3], shrink=0.6)


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    9,
    (
        Check("certified", "I + dF/dx against finite differences, both orders", at_most=1e-6),
        Check("plain", "gradient, input / end of 64 blocks, no skips", at_most=1e-12),
        Check("residual", "the same, with skips, the smaller of two kinds", at_least=0.5),
        Check("plain_learned", "loss left by 30 steps, 64 blocks, no skips", at_least=0.9),
        Check("pre_learned", "loss left by 30 steps, 64 blocks, pre-norm", at_most=0.7),
        Check(
            "plain_median", "dy/dx, 64 plain blocks that hold the scale: median / largest singular value", at_most=1e-6
        ),
        Check("pre_median", "dy/dx, 64 pre-norm blocks: median / largest singular value", at_least=0.05),
        Check("w_o", "x + output of W_O against x + attention", at_most=0),
        Check("qkv", "Q, K, V against what is added, the nearest", at_least=0.3),
        Check("no_w_o", "change of x by attention with W_O = 0", at_most=0),
        Check("back_residual", "16 blocks learn y = x: loss, residual", at_most=0.02),
        Check("back_plain", "16 blocks learn y = x: loss, plain", at_least=0.5),
        Check("nothing", "F = −x: largest gradient", at_most=0),
        Check("forgotten", "dy/dx of the half it learned to forget / the other half", at_most=0.1),
        Check("certified_still", "that block's I + dF/dx against finite differences", at_most=1e-6),
        Check("one_block", "gradient, input / end of 1 block, no skip", at_least=0.05, control=True),
        Check("one_back", "1 plain block learns y = x: loss", at_most=0.1, control=True),
        Check("uniform", "what attention adds with W_Q = W_K = 0 / before", at_least=0.1, control=True),
    ),
    run,
    draw,
    size=(15, 4.2),
)
