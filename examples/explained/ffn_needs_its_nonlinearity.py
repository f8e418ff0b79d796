"""The FFN needs its nonlinearity, and works on each position alone (前馈网络, 激活函数)

Claim. Without an activation function (激活函数) two layers are worth one: (x W1) W2 = x (W1 W2). With ReLU, GELU, SiLU or a gated unit
they are not. The FFN is position-wise (逐位置): permuting the positions permutes its outputs, and no position sees another.

Expected. The two products agree to 1e-12. The best affine map explains the FFN without activation to a residual of 1e-20 of its
variance, and leaves at least 0.005 of it with relu, gelu, silu and swiglu. Trained on y = x1·x2 (variance 1), two
layers without activation keep a loss of at least 0.9, with each activation at most 0.1. Permuting changes nothing to 1e-12, and the
gradient to any other position is exactly 0.

Control. Trained on y = x1 + x2, which is linear, the layers without activation reach a loss of at most 0.001: they can be trained.
Attention, seen through the same test, does have a gradient to other positions, at least 0.001.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn

from .frame import Check, Experiment, Result, Size, fit, gap, normal

D = 8
ACTIVATIONS = ("relu", "gelu", "silu", "swiglu")


def unexplained(ffn: nn.FeedForward, random: np.random.Generator) -> float:
    """The share of the output's variance that the best affine map of the input leaves."""
    x = normal(random, 2000, D)
    y = ffn(x).detach().numpy()
    inputs = np.hstack([x.numpy(), np.ones((2000, 1))])
    rest = y - inputs @ np.linalg.lstsq(inputs, y, rcond=None)[0]
    return float((rest**2).sum() / ((y - y.mean(0)) ** 2).sum())


def trained(activation: str, random: np.random.Generator, steps: int, product: bool) -> tuple[float, Any]:
    """The loss on y = x1·x2 (or (x1 + x2)/√2) after training, and the learned surface."""
    model = nn.Sequential(nn.Linear(2, D), nn.FeedForward(D, 32, activation), nn.Linear(D, 1))

    def loss(n: int = 64) -> Any:
        x = random.standard_normal((n, 2)).astype("f")
        y = x[:, :1] * x[:, 1:] if product else (x[:, :1] + x[:, 1:]) / 2**0.5
        return ((model(tg.tensor(x)) - tg.tensor(y)) ** 2).mean()

    fit(model.parameters(), loss, steps, lr=1e-2)
    grid = np.stack(np.meshgrid(*[np.linspace(-2, 2, 41)] * 2), -1).reshape(-1, 2).astype("f")
    with tg.no_grad():
        return loss(20000).item(), model(tg.tensor(grid)).numpy().reshape(41, 41)


def seen(layer: Any, random: np.random.Generator) -> float:
    """The largest gradient of the output at position 2 with respect to the input at any other."""
    x = normal(random, 1, 6, D, grad=True)
    (layer(x)[:, 2] * normal(random, 1, D)).sum().backward()
    return float(np.abs(np.delete(x.grad.numpy(), 2, axis=1)).max())


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    steps = size.pick(150, 600, 3000)
    x, w1, w2 = normal(random, 5, D), normal(random, D, 4 * D), normal(random, 4 * D, D)
    ffns = {a: nn.FeedForward(D, activation=a).double() for a in ("identity", *ACTIVATIONS)}
    values = {"product": gap((x @ w1) @ w2, x @ (w1 @ w2)), "affine": unexplained(ffns["identity"], random)}
    values["rest"] = min(unexplained(ffns[a], random) for a in ACTIVATIONS)
    losses, surfaces = {}, {}
    for activation in ("identity", *ACTIVATIONS):
        losses[activation], surfaces[activation] = trained(activation, random, steps, product=True)
    values["loss_linear"] = losses["identity"]
    values["loss_best"] = max(losses[a] for a in ACTIVATIONS)
    values["sum"], _ = trained("identity", random, steps, product=False)
    ffn, order = ffns["gelu"], random.permutation(6)
    batch = normal(random, 2, 6, D)
    values["permuted"] = gap(ffn(batch[:, order]), ffn(batch).detach().numpy()[:, order])
    values["others"] = max(seen(f, random) for f in ffns.values())
    values["attention"] = seen(nn.MultiHeadAttention(D, 2).double(), random)
    return Result(values, {"losses": losses, "surfaces": surfaces})


def draw(figure: Any, results: list[Result]) -> None:
    panels = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.3))
    line = np.linspace(-2, 2, 41)
    for axes, name, title in zip(
        panels, ("target", "identity", "relu"), ("y = x1·x2", "no activation", "ReLU"), strict=False
    ):
        surface = np.outer(line, line) if name == "target" else results[0].data["surfaces"][name]
        axes.imshow(surface, extent=(-2, 2, -2, 2), origin="lower", cmap="RdBu", vmin=-4, vmax=4)
        axes.set(title=title, xlabel="x1", xticks=[-2, 0, 2], yticks=[-2, 0, 2])
    panels[0].set_ylabel("x2")
    names = list(results[0].data["losses"])
    for i, name in enumerate(names):
        losses = [r.data["losses"][name] for r in results]
        panels[3].bar(i, np.mean(losses), color="tab:red" if name == "identity" else "tab:blue")
        panels[3].plot([i] * len(losses), losses, "k.")
    panels[3].set_xticks(range(len(names)), ["none", *names[1:]])
    panels[3].set(title="loss after training", yscale="log")


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    6,
    (
        Check("product", "(x W1) W2 against x (W1 W2), relative", at_most=1e-12),
        Check("affine", "variance that an affine map leaves, no activation", at_most=1e-20),
        Check("rest", "variance that an affine map leaves, lowest of four activations", at_least=0.005),
        Check("loss_linear", "loss on x1·x2, no activation", at_least=0.9),
        Check("loss_best", "loss on x1·x2, highest of four activations", at_most=0.1),
        Check("permuted", "permuted positions, change", at_most=1e-12),
        Check("others", "largest gradient to another position, FFN", at_most=0),
        Check("sum", "loss on x1 + x2, no activation", at_most=0.001, control=True),
        Check("attention", "largest gradient to another position, attention", at_least=0.001, control=True),
    ),
    run,
    draw,
    size=(13, 3.8),
)
