"""LayerNorm brings each position to one scale, on its own; and it must stand before every sublayer (层归一化)

Claim. LayerNorm subtracts a vector's mean and divides by its standard deviation: (1, 2, 3) → (−1, 0, 1) → scaled. It reads one
position only, no other and no other sequence of the batch; BatchNorm (批归一化) reads the batch, so small batches, varying lengths
and step-by-step generation disturb it. Normalising once at the input is not enough: the scale of the activations grows with depth.

Expected. (1, 2, 3) becomes (−1.2247, 0, 1.2247) to 1e-4. The gradient to any other position is exactly 0. Of the Jacobian's
singular values exactly two are below 1e-4 of the largest (along the constant vector and along x itself: these two give at most 1e-4 of the largest), and the next is at least 0.5
of it. Padding three sequences of a batch, or reading one position alone, changes LayerNorm's output by 0, exactly.
In 32 sublayers of width 64 that are normalised at the input only, the input of the last is at least 100 times that of the first, before
training; normalised before each, at most 1.5 times. The same after training, with at least 10 times without the norms.

Control. The same changes move BatchNorm's output in training by at least 0.1 (padding), and it refuses a single
position. BatchNorm with a batch of 4096 is within 0.15 of the fixed statistics, with a batch of 4 it is off by at least 0.3: it is the small
batch that disturbs it. Both stacks learn: their losses fall to at most 0.7 of the first.
"""

from functools import partial
from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn

from .frame import Check, Experiment, Result, Size, fit, gap, normal

D, DEPTH, WIDTH = 8, 32, 64


def jacobian(layer: Any, x: Any) -> Any:
    """d layer(x) / dx for one vector."""
    rows = []
    for i in range(len(x)):
        v = tg.tensor(x[None], requires_grad=True)
        layer(v)[0, i].backward()
        rows.append(v.grad.numpy()[0])
    return np.stack(rows)


def batch_noise(random: np.random.Generator, n: int) -> float:
    """How far BatchNorm of n rows is from what the true mean 0 and variance 1 would give, root mean square."""
    norm, errors = nn.BatchNorm1d(D).double(), []
    for _ in range(20):
        x = normal(random, n, D)
        errors.append(((norm(x) - x) ** 2).mean().item())
    return float(np.mean(errors) ** 0.5)


class Stack(nn.Module):
    """Residual feed-forward sublayers, normalised before each one, or once at the input."""

    def __init__(self, each: bool):
        super().__init__()
        self.first = nn.LayerNorm(WIDTH)
        sublayers = []
        for _ in range(DEPTH):
            ffn = nn.FeedForward(WIDTH, WIDTH, "relu", bias=False)
            for linear, gain in ((ffn.W1, 2.0), (ffn.W2, 1.0)):  # He's initialisation: a branch as large as its input
                nn.init.normal_(linear.weight, std=(gain / WIDTH) ** 0.5)
            sublayers.append(nn.Residual(ffn, nn.LayerNorm(WIDTH) if each else None))
        self.sublayers, self.last = nn.ModuleList(sublayers), nn.LayerNorm(WIDTH)

    def forward(self, x: tg.Tensor) -> Any:
        self.scales = []  # root mean square of what each sublayer's function reads
        x = self.first(x)
        for layer in self.sublayers:
            read = (x if layer.norm is None else layer.norm(x)).detach().numpy()
            self.scales.append(float(np.sqrt((read**2).mean())))
            x = layer(x)
        return self.last(x)


def stacks(random: np.random.Generator, steps: int) -> dict[str, Any]:
    x = tg.tensor(random.standard_normal((64, WIDTH)).astype("f"))
    y = tg.tensor(np.roll(x.numpy(), 1, -1) * np.sign(x.numpy()))

    def loss(model: Any) -> Any:
        return ((model(x) - y) ** 2).mean()

    found: dict[str, Any] = {}
    for name, each in (("each", True), ("once", False)):
        model = Stack(each)
        model(x)
        before = model.scales
        losses = fit(model.parameters(), partial(loss, model), steps, lr=1e-3)
        model(x)
        found[name] = {"before": before, "after": model.scales, "loss": losses[-1] / losses[0]}
    return found


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    layer, batch = nn.LayerNorm(D).double(), nn.BatchNorm1d(D).double()
    example = nn.LayerNorm(3).double()(tg.tensor(np.array([[1.0, 2.0, 3.0]]))).detach().numpy()[0]
    x = normal(random, 4, 6, D, grad=True)
    (layer(x)[1, 2] * normal(random, D)).sum().backward()
    elsewhere = x.grad.numpy().copy()
    elsewhere[1, 2] = 0
    point = normal(random, D).numpy()
    slope = jacobian(layer, point)
    singular = np.linalg.svd(slope)[1]
    full = x.detach()
    padded = full.clone()
    padded[1:, 3:] = 0.0

    def first(norm: Any, of: tg.Tensor) -> Any:
        return norm(of.reshape(-1, D)).reshape(4, 6, D)[0].detach().numpy()

    try:
        nn.BatchNorm1d(D)(tg.ones(1, D))
        refused = 0.0
    except ValueError:
        refused = 1.0
    found = stacks(random, size.pick(30, 150, 600))

    def growth(name: str, when: str) -> float:
        return float(found[name][when][-1] / found[name][when][0])

    values = {
        "example": float(np.abs(example - [-(1.5**0.5), 0, 1.5**0.5]).max()),
        "elsewhere": float(np.abs(elsewhere).max()),
        "null": float((singular < 1e-4 * singular[0]).sum()),
        "directions": max(float(np.linalg.norm(slope @ v) / np.linalg.norm(v)) for v in (np.ones(D), point))
        / singular[0],
        "third": float(singular[-3] / singular[0]),
        "padded": gap(first(layer, padded), first(layer, full)),
        "alone": gap(layer(full[0, 2]).detach().numpy(), first(layer, full)[2]),
        "once_before": growth("once", "before"),
        "each_before": growth("each", "before"),
        "once_after": growth("once", "after"),
        "each_after": growth("each", "after"),
        "batch_padded": gap(first(batch, padded), first(batch, full)),
        "refused": refused,
        "large_batch": batch_noise(random, 4096),
        "small_batch": batch_noise(random, 4),
        "learned": max(found[name]["loss"] for name in found),
    }
    found["noise"] = [(n, batch_noise(random, n)) for n in (2, 4, 8, 16, 64, 256, 1024)]
    return Result(values, found)


def draw(figure: Any, results: list[Result]) -> None:
    left, right = figure.subplots(1, 2)
    for i, r in enumerate(results):
        for name, colour, label in (
            ("once", "tab:red", "once, at the input"),
            ("each", "tab:blue", "before each sublayer"),
        ):
            label = label if i == 0 else ""
            left.semilogy(r.data[name]["before"], color=colour, label=label and f"{label}; before training")
            left.semilogy(r.data[name]["after"], "--", color=colour, label=label and "after training")
        right.loglog(*zip(*r.data["noise"], strict=True), "o-", color="tab:red", label="BatchNorm" if i == 0 else None)
    right.loglog([2, 1024], [1e-2, 1e-2], color="tab:blue", label="LayerNorm: exactly 0 (drawn at the edge)")
    left.set(title="scale of what each sublayer reads", xlabel="sublayer", ylim=(0.3, None))
    right.set(title="disturbance by the rest of the batch", xlabel="rows in the batch", ylim=(1e-2, 2))
    left.legend(fontsize=10)
    right.legend(fontsize=10)


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    12,
    (
        Check("example", "LayerNorm of (1, 2, 3), error", at_most=1e-4),
        Check("elsewhere", "largest gradient to another position", at_most=0),
        Check("null", "singular values below 1e-4 of the largest", 2, 2),
        Check("directions", "the slope along the constant vector and along x, relative", at_most=1e-4),
        Check("third", "the next singular value, relative", at_least=0.5),
        Check("padded", "LayerNorm, other sequences padded: change", at_most=0),
        Check("alone", "LayerNorm, one position alone: change", at_most=0),
        Check("once_before", "scale, last / first sublayer, norm at the input only", at_least=100),
        Check("each_before", "scale, last / first sublayer, norm before each", at_most=1.5),
        Check("once_after", "the same after training, norm at the input only", at_least=10),
        Check("each_after", "the same after training, norm before each", at_most=1.5),
        Check("batch_padded", "BatchNorm, other sequences padded: change", at_least=0.1, control=True),
        Check("refused", "BatchNorm in training refuses one position (1 = yes)", 1, 1, control=True),
        Check("large_batch", "BatchNorm, disturbance with 4096 rows", at_most=0.15, control=True),
        Check("small_batch", "BatchNorm, disturbance with 4 rows", at_least=0.3, control=True),
        Check("learned", "last loss / first loss of the slower stack", at_most=0.7, control=True),
    ),
    run,
    draw,
    size=(12, 4.5),
)
