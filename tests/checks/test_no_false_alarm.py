"""Right code with awkward inputs passes: kinks nearby, large and tiny numbers, size 0, ties, sharing, in-place writing."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import nn
from tinygrad_tf.nn import functional as F

RNG = np.random.default_rng(0)


def leaf(values: Any) -> Any:
    return tg.tensor(np.asarray(values, dtype=np.float64), requires_grad=True)


def normal(*shape: int) -> Any:
    return leaf(RNG.standard_normal(shape))


def filled(x: Any) -> Any:
    buffer = tg.zeros(4, dtype=tg.float64)
    for k in range(4):
        buffer[k] = x[k] * k
    return buffer


def writes(x: Any) -> Any:
    y = x * 2
    y += x
    y[0] = 0.0
    y *= 3
    return y


def writes_into_its_input(x: Any) -> Any:
    x += 1.0
    x[0] = x[1] * 2
    return x * x


RIGHT: dict[str, tuple[Any, Any]] = {
    "kinks near": (tg.relu, leaf([1e-7, -1e-7, 1e-9, -3e-8, 1.0])),
    "kinks very near": (tg.relu, leaf([1e-12, -1e-12, 1e-15, 1.0])),
    "abs": (lambda x: tg.abs(x).sum(), leaf([1e-7, -1e-8, 2])),
    "clamp": (lambda x: tg.clamp(x, 0, 1), leaf([1e-8, 1 - 1e-9, 0.5])),
    "maximum": (tg.maximum, (leaf([1.0, 2.0]), leaf([1.0 + 1e-8, 2 - 1e-7]))),
    "floor": (lambda x: x * tg.floor_divide(x, 1.0), normal(4)),
    "large": (lambda x: (x**2).sum(), leaf([1e10, -3e8, 2.0])),
    "large angles": (tg.sin, leaf([1e5, 1e3, 3e7, 1e10])),
    "tiny, log": (tg.log, leaf([1e-8, 1e-12, 1e-3])),
    "tiny, sqrt": (tg.sqrt, leaf([1e-10, 1e-6])),
    "tiny, square": (tg.square, leaf([1e-10, 1e-150])),
    "reciprocal": (tg.reciprocal, leaf([1e-9, 1e9])),
    "exp": (tg.exp, leaf([700.0, -700.0, 300.0])),
    "an offset": (lambda x: 1e10 + x**2, normal(3)),
    "cancellation": (lambda x: (x + 1e9) - 1e9, normal(3)),
    "size 0": (tg.exp, leaf(np.zeros((0, 3)))),
    "size 0, summed": (lambda x: x.sum(0), leaf(np.zeros((0, 3)))),
    "size 0 and not": (lambda x, y: tg.cat([x, y]), (leaf(np.zeros((0, 3))), normal(2, 3))),
    "0-d": (tg.exp, leaf(0.5)),
    "a sum that is constant": (lambda x: F.softmax(x, -1).sum(), normal(3, 4)),
    "a norm's sum": (lambda x: F.layer_norm(x, (4,)).sum(), normal(3, 4)),
    "tiny, normed": (lambda x: F.layer_norm(x, (4,)), leaf(1e-8 * RNG.standard_normal((3, 4)))),
    "large, normed": (lambda x: F.layer_norm(x, (4,)), leaf(1e8 * RNG.standard_normal((3, 4)))),
    "ties of two": (lambda x: tg.amax(x), leaf([1, 1, 0])),
    "the same twice": (lambda a, b: a * b, (lambda x: (x, x))(normal(3))),
    "in place": (writes, normal(3)),
    "in place, its input": (writes_into_its_input, normal(3)),
    "expanded": (tg.exp, leaf([[1.0], [2.0]]).detach().expand(2, 3).requires_grad_()),
    "transposed": (lambda x: x @ x.mT, normal(3, 4).detach().mT.requires_grad_()),
    "a list": (lambda xs: tg.cat(xs), ([normal(2), normal(3)],)),
    "grad inside": (lambda x: tg.grad((x**3).sum(), x, create_graph=True)[0], normal(3)),
    "an input without effect": (lambda x, y: x * 2, (normal(3), normal(3))),
    "constant": (lambda x: x * 0, normal(3)),
    "a tiny loss": (lambda x: 1e-9 * (x**3).sum(), normal(4)),
    "a huge loss": (lambda x: 1e12 * (x**3).sum(), normal(4)),
    "saturated": (tg.sigmoid, leaf([40.0, -40.0, 800.0])),
    "sure and right": (lambda x: F.cross_entropy(x, tg.tensor([0, 1])), leaf([[50.0, 0, 0], [0, 60.0, 0]])),
    "tiny norm": (lambda x: tg.norm(x), leaf([1e-12, 2e-12])),
    "std of large": (lambda x: x.std(), leaf([1e5 + 1, 1e5 + 2, 1e5 + 4])),
    "checkpoint": (lambda x: tg.checkpoint(lambda y: tg.tanh(y) * y, x), normal(3)),
    "a product with zeros": (lambda x: tg.prod(x), leaf([0, 0, 3.0])),
    "power 0": (lambda x: x**0, leaf([0.0, 1.0])),
    "a mask of -1e9": (lambda x: F.softmax(x + tg.tensor([[0.0, -1e9, 0.0]]).double(), -1), normal(2, 3)),
    "near a kink": (lambda x: tg.abs(x), leaf([1e-9, -1e-5, 1e-7])),
    "near a tie": (lambda x: x.sort(0)[0] * tg.tensor([1.0, 2.0, 3.0]).double(), leaf([1.0, 1.0 + 3e-7, 0.3])),
    "near singular": (lambda a: 1 / (a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0]), leaf([[1, 1], [1, 1.0001]])),
    "very steep": (lambda x: tg.sin(1e5 * x), normal(5)),
    "a long chain": (lambda x: functools.reduce(lambda a, _: 1.5 * tg.sin(a), range(60), x), normal(3)),
    "far scales": (lambda x: x * 1e-300, leaf([1e300, -2e300])),
    "outputs without gradient": (lambda x: (x.detach(), x.argmax(), x * x, x), normal(3)),
    "a buffer that is filled": (lambda x: filled(x), normal(4)),
    "float32 constants": (lambda x: x * tg.tensor([0.1, 0.7, 3.0]).double(), normal(3)),
}


@pytest.mark.parametrize("mode", ["full", "fast"])
@pytest.mark.parametrize("name", RIGHT)
def test_right_code_passes(name: str, mode: str) -> None:
    function, inputs = RIGHT[name]
    assert tg.gradcheck(function, inputs, mode=mode)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Any) -> Any:
        return self.b(tg.relu(self.a(x)))


class Shared(nn.Module):
    """One layer used twice, and a running mean that moves at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 3), nn.BatchNorm1d(3)

    def forward(self, x: Any) -> Any:
        return self.norm(self.layer(self.layer(x)))


@pytest.mark.parametrize("mode", ["full", "fast"])
@pytest.mark.parametrize("kind", [Tied, Shared])
def test_modules_that_share_pass(kind: Any, mode: str) -> None:
    tg.manual_seed(0)
    module = kind().double()
    before = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    assert tg.gradcheck(module, normal(5, 3), mode=mode)
    for name, value in module.state_dict().items():
        assert (value.numpy() == before[name]).all(), name


def test_a_wide_relu_network_passes() -> None:
    tg.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1)).double()
    assert tg.gradcheck(module, normal(16, 4), mode="fast")


def test_everything_is_as_before_after_an_exception() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(tg.tensor(np.array([0.1, 0.2, 0.3])))
            self.calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.calls == 5:
                raise OSError("stopped")
            return x * self.weight

    module, x = Fails(), normal(3)
    weight, data, values = module.weight.numpy(), module.weight._data, x.numpy().copy()
    kept = weight.copy()
    with pytest.raises(OSError, match="stopped"):
        tg.gradcheck(module, x)
    assert module.weight._data is data and (weight == kept).all() and (x.numpy() == values).all()
    assert module.weight.grad is None and x.grad is None


def test_no_grad_around_it_does_not_matter() -> None:
    with tg.no_grad():
        assert tg.gradcheck(tg.exp, normal(3))
