"""Faults between operations that are all right: the report names the place where the value or the gradient changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import nn


def leaf(*shape: int) -> Any:
    return tg.tensor(np.random.default_rng(0).standard_normal(shape), requires_grad=True)


def report(function: Any, inputs: Any) -> tuple[str, tg.GradcheckError]:
    with pytest.raises(tg.GradcheckError) as caught:
        tg.gradcheck(function, inputs)
    assert caught.value.operation is None
    return str(caught.value), caught.value


@pytest.mark.parametrize(
    ("function", "diagnosis"),
    [
        (lambda x: x * x.detach(), "one of several uses is missing"),
        (lambda x: x * 3 + tg.tensor(np.sin(x.detach().numpy())), "one of several uses is missing"),
        (lambda x: x * float(x.sum().item()), "one of several uses is missing"),
    ],
)
def test_a_cut_graph(function: Any, diagnosis: str) -> None:
    """An operand lost its history."""
    text, error = report(function, leaf(3))
    assert "carries no gradient" in text and error.diagnosis == diagnosis


class Cut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        with tg.no_grad():
            hidden = tg.tanh(self.first(x))
        return self.second(hidden) * x.sum()


def test_a_cut_inside_a_module() -> None:
    tg.manual_seed(0)
    text, error = report(Cut().double(), tg.tensor(np.ones((5, 3))))
    assert "zero gradient; the graph is cut at x of linear in module second" in text.splitlines()[0]
    assert "no operation leads to it; look at" in text and "detach(), numpy(), item(), no_grad()?" in text
    text, error = report(nn.Sequential(nn.Linear(3, 3), Cut()).double(), leaf(5, 3))
    first = text.splitlines()[0]
    assert "; the graph is cut at x of linear in module 1.second, called at" in first
    assert error.line is not None and error.line in first
    assert "return self.second(hidden) * x.sum()" in text


class Kept(nn.Module):
    def __init__(self, of_input: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(tg.tensor([[1.0, 2.0], [0.5, 3.0]]))
        self.of_input, self.kept = of_input, None

    def forward(self, x: Any) -> Any:
        if self.kept is None:
            self.kept = tg.sigmoid(x if self.of_input else self.weight)
        return tg.tanh(x @ self.weight) @ self.kept


@pytest.mark.parametrize("of_input", [False, True])
def test_a_value_kept_from_an_earlier_call(of_input: bool) -> None:
    text, error = report(Kept(of_input).double(), leaf(2, 2))
    assert error.diagnosis == "kept from an earlier call"
    assert (
        "was computed by sigmoid in an earlier call" in text and "return tg.tanh(x @ self.weight) @ self.kept" in text
    )


def doubled_in_secret(x: Any) -> Any:
    y = x * 2
    with tg.no_grad():
        y.mul_(3)
    return tg.sin(y)


def test_a_value_changed_in_place_without_being_recorded() -> None:
    text, error = report(doubled_in_secret, leaf(3))
    assert error.diagnosis == "changed in place"
    assert "x of sin, called at" in text and "is not what mul gave at" in text and "return tg.sin(y)" in text


class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        hidden = self.linear(x)
        hidden.register_hook(halved)
        return tg.tanh(hidden)


def halved(g: Any) -> Any:
    return 0.5 * g


def test_a_hook_that_changes_the_gradient() -> None:
    text, error = report(Hooked().double(), leaf(2, 3))
    assert error.diagnosis == "a hook changes the gradient"
    assert "the gradient of the output of linear in module linear, called at" in text and "its hook halved at" in text
    module = nn.Linear(2, 2).double()
    module.weight.register_hook(halved)
    text, error = report(module, leaf(3, 2))
    assert error.diagnosis == "a hook changes the gradient" and "the gradient of parameter weight" in text


def test_a_hook_that_only_looks_is_not_accused() -> None:
    module = nn.Linear(2, 2).double()
    module.weight.register_hook(lambda g: None)
    module.weight.register_hook(halved)
    module.bias.register_hook(lambda g: None)
    text, _ = report(module, leaf(3, 2))
    assert "right: input 0, parameter bias" in text


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return tg.tanh(x) * self.calls


@pytest.mark.parametrize("function", [Counts(), lambda x: tg.exp(x) * tg.tensor(np.random.random(3))])
def test_what_changes_from_call_to_call_is_named(function: Any) -> None:
    with pytest.raises(tg.GradcheckError, match="its b is another one in each call") as caught:
        tg.gradcheck(function, leaf(3))
    assert caught.value.diagnosis == "not deterministic" and caught.value.operation == "mul"
    assert "; by mul, called at" in str(caught.value).splitlines()[0]
