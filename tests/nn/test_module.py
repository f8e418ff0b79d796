"""Module: registration, ties, state, hooks, modes, conversion."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import nn


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(5, 2)
        self.mid = nn.Linear(2, 2)
        self.head = nn.Linear(2, 5, bias=False)
        self.head.weight = self.wte.weight
        self.register_buffer("steps", tg.tensor(np.array(3)))
        self.register_buffer("scratch", tg.zeros(2), persistent=False)

    def forward(self, ids: tg.Tensor) -> tg.Tensor:
        return self.head(self.mid(self.wte(ids)))


def test_bc28_shared_parameter_is_yielded_once_and_stored_under_both_names() -> None:
    """BC-28."""
    m = Tied()
    assert [n for n, _ in m.named_parameters()] == ["wte.weight", "mid.weight", "mid.bias"]
    assert m.num_parameters() == 10 + 4 + 2
    assert set(m.state_dict()) == {"wte.weight", "mid.weight", "mid.bias", "head.weight", "steps"}
    assert not any(t.requires_grad for t in m.state_dict().values())


@pytest.mark.parametrize("how", ["load", "partial", "double", "deepcopy", "pickle"])
def test_bc28_ties_hold(how: str) -> None:
    """BC-28: after load, conversion and copy, one write moves both uses."""
    m = Tied()
    if how in ("load", "partial"):
        state = {n: t.numpy().copy() for n, t in Tied().state_dict().items()}
        if how == "partial":
            del state["head.weight"]
        m.load_state_dict(state)
        assert (m.head.weight.detach().numpy() == state["wte.weight"]).all()
    elif how == "double":
        m.double()
        assert m(tg.tensor([1])).dtype == np.float64
    elif how == "deepcopy":
        m = copy.deepcopy(m)
    else:
        m = pickle.loads(pickle.dumps(m))
    assert m.wte.weight is m.head.weight
    before = m(tg.tensor([1])).detach().numpy().copy()
    with tg.no_grad():
        m.wte.weight.fill_(0.0)
    assert (m(tg.tensor([1])).detach().numpy() == 0).all() and (before != 0).any()


def test_bc28_gradient_of_a_tie_is_the_sum_of_both_uses() -> None:
    """BC-28."""
    tg.manual_seed(0)
    m = Tied().double()
    ids = tg.tensor([0, 1, 1])
    c = np.random.default_rng(0).standard_normal((3, 5))
    (m(ids) * c).sum().backward()
    w, got = m.wte.weight, m.wte.weight.grad.numpy().copy()
    for i in np.ndindex(*w.shape):
        values = []
        for step in (1e-6, -2e-6):
            with tg.no_grad():
                w[i] = w[i] + step
                values.append(float((m(ids) * c).sum().item()))
        with tg.no_grad():
            w[i] = w[i] + 1e-6
        assert abs((values[0] - values[1]) / 2e-6 - got[i]) < 1e-6


def test_load_checks_everything_before_it_writes() -> None:
    m = Tied()
    before = {n: t.numpy().copy() for n, t in m.state_dict().items()}
    bad = {n: a + 1 for n, a in before.items()}
    del bad["mid.bias"]
    bad["mid.weight"] = np.zeros((3, 3), np.float32)
    bad["other"] = np.zeros(1, np.float32)
    with pytest.raises(RuntimeError) as error:
        m.load_state_dict(bad)
    for part in ("missing: mid.bias", "unexpected: other", "mid.weight: expected shape (2, 2), got (3, 3)"):
        assert part in str(error.value)
    assert all((t.numpy() == before[n]).all() for n, t in m.state_dict().items())
    clash = dict(before)
    clash["head.weight"] = before["head.weight"] + 1
    with pytest.raises(RuntimeError, match="tied to wte.weight"):
        m.load_state_dict(clash)
    m.load_state_dict({"mid.bias": np.array([5.0, 6.0]), "other": 1}, strict=False)
    assert m.mid.bias.detach().numpy().tolist() == [5, 6] and m.mid.bias.dtype == np.float32


def test_load_of_its_own_memory_crossed_over() -> None:
    m = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    a, b = (p.detach().numpy().copy() for p in m.parameters())
    s = m.state_dict()
    m.load_state_dict({"0.weight": s["1.weight"], "1.weight": s["0.weight"]})
    assert (m[0].weight.detach().numpy() == b).all() and (m[1].weight.detach().numpy() == a).all()


def test_loading_between_forward_and_backward_is_noticed() -> None:
    m = nn.Linear(2, 2)
    y = m(tg.ones(1, 2, requires_grad=True)).sum()
    m.load_state_dict(nn.Linear(2, 2).state_dict())
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()


def test_hooks_see_and_replace() -> None:
    m = nn.Linear(2, 2)
    seen = []
    pre = m.register_forward_pre_hook(lambda mod, args: (args[0] * 0,))
    post = m.register_forward_hook(lambda mod, args, out: seen.append(args) or out * 2)
    y = m(tg.ones(1, 2)).detach().numpy()
    assert np.allclose(y, 2 * m.bias.detach().numpy()) and len(seen) == 1
    pre.remove()
    post.remove()
    assert not np.allclose(m(tg.ones(1, 2)).detach().numpy(), y)


def test_attributes_and_their_errors() -> None:
    m = Tied()
    with pytest.raises(TypeError, match="is a parameter"):
        m.mid.weight = tg.zeros(2, 2)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = m.nothing
    with pytest.raises(TypeError):
        nn.Parameter(np.arange(3))
    m.mid.bias = None
    assert "mid.bias" not in m.state_dict()
    del m.mid
    assert "mid" not in dict(m.named_children())

    class Forgot(nn.Module):
        def __init__(self) -> None:
            self.layer = nn.Linear(1, 1)

    with pytest.raises(AttributeError, match="super"):
        Forgot()


def test_modes_zero_grad_and_requires_grad() -> None:
    m = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    m[1].eval()
    with pytest.raises(KeyError), nn.eval_mode(m):
        assert not m.training and not m[0].training
        raise KeyError
    assert m.training and m[0].training and not m[1].training
    m(tg.ones(1, 2)).sum().backward()
    m.zero_grad()
    assert all(p.grad is None for p in m.parameters())
    m.requires_grad_(False)
    assert not m(tg.ones(1, 2)).requires_grad
    visited: list[str] = []
    m.apply(lambda x: visited.append(type(x).__name__))
    assert visited[-1] == "Sequential" and len(visited) == 3


def test_repr_is_a_tree_with_shapes_counts_and_ties_once() -> None:
    text = repr(Tied())
    assert "weight (5, 2) = " not in text.splitlines()[2]
    assert "= wte.weight (tied)" in text and text.splitlines()[0].endswith("16")


@pytest.mark.parametrize("name", ["nn", "models"])
def test_bare_import_names_the_right_one(name: str) -> None:
    from pathlib import Path

    root = Path(__file__).parents[2]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); import {name}"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode and f"ImportError: these {'layers' if name == 'nn' else 'models'}" in run.stderr
    assert f"from tinygrad_tf import {name}" in run.stderr


def test_registered_names_as_attributes() -> None:
    """What is assigned over a registered name, or defined in a subclass, comes first; a class itself has none."""
    layer, other = nn.Linear(3, 2), nn.Linear(3, 2)
    with pytest.raises(AttributeError):
        _ = nn.Linear.weight
    assert not hasattr(nn.Linear, "bias") and nn.Linear(3, 2, bias=False).bias is None
    replaced = nn.Parameter(tg.ones(2, 3))
    layer._parameters["weight"] = replaced
    assert layer.weight is replaced and other.weight is not replaced
    del layer.weight
    with pytest.raises(AttributeError, match="Linear has no attribute 'weight'"):
        _ = layer.weight
    layer.weight = tg.full((2, 3), 2.0)  # a plain tensor, as weight normalization puts there
    assert (layer(tg.ones(1, 3)).numpy() - layer.bias.numpy() == 6).all() and "weight" not in layer._parameters

    class Doubled(nn.Linear):
        @property
        def weight(self) -> tg.Tensor:
            return self._parameters["weight"] * 2

    doubled = Doubled(3, 2)
    assert (doubled.weight.numpy() == 2 * doubled._parameters["weight"].numpy()).all()  # type: ignore[union-attr]
    assert (other.weight.numpy() == other._parameters["weight"].numpy()).all()  # type: ignore[union-attr]

    class Either(nn.Module):
        def __init__(self, buffer: bool):
            super().__init__()
            if buffer:
                self.register_buffer("x", tg.ones(1))
            else:
                self.x = nn.Parameter(tg.zeros(1))

    assert Either(False).x.item() == 0 and Either(True).x.item() == 1
