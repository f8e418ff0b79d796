"""The residual connection adds; concatenation would keep everything, and pay for it (残差连接, 相加与拼接)

Claim. y = x + F(x) keeps the width, so parameters and memory grow with depth as they should; concatenation (拼接) [x; F(x)] widens the stream at
every layer, and both grow quadratically. Both have an identity path (恒等路径) for the gradient, concatenation only until it is compressed to
the old width. Addition is a concatenation that is compressed at once, by the fixed matrix [I I].

Expected. From 16 to 32 layers, addition's parameters and the memory for the layers' inputs grow with depth to the power 1
(0.95 to 1.05), concatenation's to the power of at least 1.7. x + F(x) equals [x; F(x)] [I I]ᵀ exactly (difference 0). With all
F = 0, dy/dx over 32 layers is exactly I with addition (difference 0) and, in its first columns, with concatenation (difference 0).
Compressed by a random matrix after each layer, one that keeps the variance, dy/dx is at least 0.5 away from I after one layer;
after 32, its smallest singular value is at most 1e-6 of its largest: some directions are lost.

Control. Compressed by [I I] instead, the same code gives exactly I after 32 layers (difference 0): the random matrix is
what breaks the path, not the compressing.
"""

from typing import Any

import numpy as np

import tinygrad_tf as tg
from tinygrad_tf import nn

from .frame import Check, Experiment, Result, Size, gap, normal

D, DEPTHS = 16, (1, 2, 4, 8, 16, 32)


class Net(nn.Module):
    """Layers F_l = ReLU(Linear) whose results are added to the stream, or stand beside it."""

    def __init__(self, depth: int, add: bool):
        super().__init__()
        self.add = add
        self.layers = nn.ModuleList(nn.Linear(D if add else D * (i + 1), D) for i in range(depth))

    def forward(self, x: tg.Tensor) -> tg.Tensor:
        self.kept = 0  # bytes of the layers' inputs, which backward needs
        for layer in self.layers:
            self.kept += x.numpy().nbytes if not x.requires_grad else x.detach().numpy().nbytes
            f = nn.functional.relu(layer(x))
            x = x + f if self.add else tg.cat([x, f], -1)
        return x

    def without_branches(self) -> "Net":
        for p in self.parameters():
            nn.init.zeros_(p)
        return self


def jacobian(f: Any, random: np.random.Generator) -> Any:
    """dy/dx of one vector, the first D outputs."""
    x = normal(random, 1, D, grad=True)
    y = f(x)
    rows = []
    for i in range(D):
        x.grad = None
        y[0, i].backward(retain_graph=True)
        rows.append(x.grad.numpy()[0].copy())
    return np.stack(rows)


def compressed(matrices: list[Any]) -> Any:
    """Layers with F = 0: beside the stream, then back to the old width by a matrix (D, 2D)."""

    def f(x: tg.Tensor) -> tg.Tensor:
        for m in matrices:
            x = tg.cat([x, 0.0 * x], -1) @ tg.tensor(m.T)
        return x

    return f


def run(seed: int, size: Size) -> Result:
    random = np.random.default_rng(seed)
    parameters: dict[bool, list[int]] = {True: [], False: []}
    memory: dict[bool, list[int]] = {True: [], False: []}
    for add in (True, False):
        for depth in DEPTHS:
            net = Net(depth, add)
            net(tg.randn(1, D))
            parameters[add].append(net.num_parameters())
            memory[add].append(net.kept)
    x, f = normal(random, 3, D), normal(random, 3, D)
    eye = np.eye(D)
    both = np.hstack([eye, eye])
    initial = [random.standard_normal((D, 2 * D)) / D**0.5 for _ in range(32)]
    sizes = []
    for depth in DEPTHS:
        singular = np.linalg.svd(jacobian(compressed(initial[:depth]), random))[1]
        sizes.append((float(singular[0]), float(singular[-1])))
    values = {
        "one_matrix": gap(tg.cat([x, f], -1) @ tg.tensor(both.T), x + f),
        "add_identity": gap(jacobian(Net(32, True).double().without_branches(), random), eye),
        "cat_identity": gap(jacobian(Net(32, False).double().without_branches(), random), eye),
        "compressed_once": gap(jacobian(compressed(initial[:1]), random), eye),
        "compressed": sizes[-1][1] / sizes[-1][0],
        "control": gap(jacobian(compressed([both] * 32), random), eye),
    }
    for name, counts in (("parameters", parameters), ("memory", memory)):
        for kind, add in (("add", True), ("cat", False)):
            values[f"{kind}_{name}"] = float(np.log2(counts[add][-1] / counts[add][-2]))
    return Result(values, {"parameters": parameters, "memory": memory, "sizes": sizes})


def draw(figure: Any, results: list[Result]) -> None:
    left, middle, right = figure.subplots(1, 3)
    data = results[0].data
    for add, colour, label in ((True, "tab:blue", "addition"), (False, "tab:red", "concatenation")):
        left.loglog(DEPTHS, data["parameters"][add], "o-", color=colour, label=label)
        middle.loglog(DEPTHS, data["memory"][add], "o-", color=colour, label=label)
    right.semilogy(DEPTHS, [1.0] * len(DEPTHS), color="tab:blue", label="addition: exactly I")
    right.semilogy(DEPTHS, [1.0] * len(DEPTHS), "--", color="tab:red", label="concatenation: exactly I")
    for i, r in enumerate(results):
        large, small = zip(*r.data["sizes"], strict=True)
        right.semilogy(DEPTHS, small, "o-", color="tab:gray", label=None if i else "… compressed each time: smallest")
        right.semilogy(DEPTHS, large, "o--", color="tab:gray", label=None if i else "… and largest")
    for axes, title in (
        (left, "parameters"),
        (middle, "bytes of the layers' inputs"),
        (right, "singular values of dy/dx, all F = 0"),
    ):
        axes.set(title=title, xlabel="layers")
        axes.legend(fontsize=10, loc="lower left" if axes is right else None)
    right.set_ylim(1e-32, 1e3)


EXPERIMENT = Experiment(
    __name__,
    __doc__,
    10,
    (
        Check("add_parameters", "power of depth: parameters, addition", 0.95, 1.05),
        Check("cat_parameters", "power of depth: parameters, concatenation", at_least=1.7),
        Check("add_memory", "power of depth: memory, addition", 0.95, 1.05),
        Check("cat_memory", "power of depth: memory, concatenation", at_least=1.7),
        Check("one_matrix", "x + F(x) against [x; F(x)] [I I]ᵀ", at_most=0),
        Check("add_identity", "dy/dx against I, addition, 32 layers", at_most=0),
        Check("cat_identity", "dy/dx against I, concatenation, 32 layers", at_most=0),
        Check("compressed_once", "dy/dx against I, compressed once by a random matrix", at_least=0.5),
        Check("compressed", "dy/dx, compressed 32 times: smallest / largest singular value", at_most=1e-6),
        Check("control", "dy/dx against I, compressed 32 times by [I I]", at_most=0, control=True),
    ),
    run,
    draw,
    size=(13, 4.2),
)
