"""Optimizers, schedules and clipping, against worked numbers and plain numpy."""

import copy
import json
import math

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf import optim

KINDS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1),
    "momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1),
    "nesterov": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: optim.Adam(p, lr=0.1, weight_decay=0.1),
    "adamw": lambda p: optim.AdamW(p, lr=0.1, weight_decay=0.1),
}


def parameter(values, dtype=np.float64):
    return tg.tensor(np.array(values, dtype), requires_grad=True)


def give(p, gradient):
    p.grad = tg.tensor(np.array(gradient, p.dtype))


def test_bc_29_adamw_over_four_steps_with_a_resume_between():
    """BC-29: adamw over four steps with a resume between."""
    p = parameter([1.0])
    adamw = optim.AdamW([p], lr=0.1, weight_decay=0.1)
    seen = []
    for i, g in enumerate((0.1, -0.2, 0.3, 0.05)):
        if i == 2:
            state = adamw.state_dict()
            adamw = optim.AdamW([p], lr=7.0)
            adamw.load_state_dict(state)
            np.testing.assert_allclose(state["state"][0]["exp_avg"], -0.011)
            np.testing.assert_allclose(state["state"][0]["exp_avg_sq"], 4.999e-5)
        give(p, [g])
        adamw.step()
        seen.append(p.item())
    np.testing.assert_allclose(seen, [0.89000001, 0.917710360, 0.874209150, 0.829896276], rtol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_bc_29_state_goes_through_a_copy_bit_for_bit(kind):
    """BC-29: state goes through a copy bit for bit."""
    rng = np.random.default_rng(3)
    gradients = rng.standard_normal((6, 3, 4)).astype(np.float32)
    p, q = parameter(np.ones((3, 4)), np.float32), parameter(np.ones((3, 4)), np.float32)
    straight, broken = KINDS[kind]([p]), KINDS[kind]([q])
    for i, g in enumerate(gradients):
        if i == 3:
            state = copy.deepcopy(broken.state_dict())
            broken = KINDS[kind]([q])
            broken.load_state_dict(state)
        for t, o in ((p, straight), (q, broken)):
            give(t, g)
            o.step()
    np.testing.assert_array_equal(p.numpy(), q.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_bc_01_nothing_becomes_float64(kind):
    p = parameter([1.0, 2.0], np.float32)
    o = KINDS[kind]([p])
    o.param_groups[0]["lr"] = np.float64(0.1)
    give(p, [0.5, -0.5])
    optim.clip_grad_norm_([p], np.float64(0.1))
    o.step()
    assert p.dtype == p.grad.dtype == np.float32
    assert all(v.dtype == np.float32 for s in o.state.values() for v in s.values() if isinstance(v, np.ndarray))


@pytest.mark.parametrize("kind", KINDS)
def test_bc_35_no_gradient_no_change_and_versions_move(kind):
    """BC-35: no gradient no change and versions move."""
    p, q = parameter([1.0, 2.0]), parameter([3.0])
    o = KINDS[kind]([p, q])
    give(p, [1.0, -1.0])
    before = p._storage.version
    o.step()
    assert q.item() == 3.0 and 1 not in o.state
    assert p._storage.version > before and (p.numpy() != [1.0, 2.0]).all()


def test_bc_35_adamw_decays_first_and_survives_tiny_gradients():
    """BC-35: adamw decays first and survives tiny gradients."""
    p = parameter([1.0])
    give(p, [0.1])
    optim.AdamW([p], lr=0.1, weight_decay=0.1).step()
    assert p.item() == pytest.approx(0.89000001, abs=1e-12)
    q = parameter([1.0], np.float32)
    give(q, [1e-23])
    optim.AdamW([q], lr=0.1, weight_decay=0.0).step()
    assert np.isfinite(q.item())
    still = parameter([1.0])
    give(still, [0.1])
    optim.AdamW([still], lr=0.0, weight_decay=0.5).step()
    assert still.item() == 1.0


def test_adam_and_momentum_against_numpy():
    rng = np.random.default_rng(0)
    gradients = rng.standard_normal((5, 2, 3))
    start = rng.standard_normal((2, 3))
    p, q = parameter(start), parameter(start)
    adam = optim.Adam([p], lr=0.03, betas=(0.8, 0.9), weight_decay=0.2)
    sgd = optim.SGD([q], lr=0.03, momentum=0.7, weight_decay=0.2, nesterov=True)
    want, m, v, plain, b = start.copy(), 0.0, 0.0, start.copy(), 0.0
    for t, g0 in enumerate(gradients, 1):
        give(p, g0)
        give(q, g0)
        adam.step()
        sgd.step()
        g = g0 + 0.2 * want
        m, v = 0.8 * m + 0.2 * g, 0.9 * v + 0.1 * g * g
        want = want - 0.03 * (m / (1 - 0.8**t)) / (np.sqrt(v / (1 - 0.9**t)) + 1e-8)
        g = g0 + 0.2 * plain
        b = 0.7 * b + g
        plain = plain - 0.03 * (g + 0.7 * b)
    np.testing.assert_allclose(p.numpy(), want, rtol=1e-12)
    np.testing.assert_allclose(q.numpy(), plain, rtol=1e-12)


def test_adamw_updates_a_parameter_of_another_layout():
    base = np.arange(6.0).reshape(2, 3)
    p, q = tg.from_numpy(base.T.copy().T), parameter(base)
    p.requires_grad_()
    assert not p._data.flags.c_contiguous
    for t in (p, q):
        give(t, base - 2)
        optim.AdamW([t], lr=0.1).step()
    np.testing.assert_array_equal(p.numpy(), q.numpy())


def test_groups_hold_each_parameter_once():
    p, q = parameter([1.0]), parameter([2.0])
    with pytest.raises(ValueError, match="twice"):
        optim.SGD([p, q, p])
    with pytest.raises(ValueError, match="twice"):
        optim.AdamW([{"params": [p]}, {"params": [q, p]}])
    with pytest.raises(ValueError, match="empty"):
        optim.SGD([])
    with pytest.raises(TypeError, match="result of an operation"):
        optim.SGD([p * 2])
    with pytest.raises(ValueError, match="unknown settings.*decay"):
        optim.AdamW([{"params": [p], "decay": 1}])
    with pytest.raises(ValueError, match="lr must"):
        optim.AdamW([p], lr=-1.0)
    groups = optim.AdamW([{"params": [p], "weight_decay": 0.5}, {"params": [q]}], weight_decay=0.0).param_groups
    assert [g["weight_decay"] for g in groups] == [0.5, 0.0]


def test_state_of_other_parameters_is_refused():
    state = optim.AdamW([("a", parameter([1.0, 2.0]))]).state_dict()
    for wrong, match in (
        (optim.AdamW([("a", parameter([1.0]))]), "shape"),
        (optim.AdamW([("b", parameter([1.0, 2.0]))]), "stands where"),
        (optim.SGD([("a", parameter([1.0, 2.0]))]), "AdamW"),
        (optim.AdamW([("a", parameter([1.0, 2.0])), ("c", parameter([1.0]))]), "groups"),
    ):
        with pytest.raises(ValueError, match=match):
            wrong.load_state_dict(state)


def test_bc_28_clipping_counts_a_tied_tensor_once():
    p = parameter([0.0, 0.0])
    give(p, [3.0, 4.0])
    assert optim.clip_grad_norm_([p, p], 1.0) == 5.0
    np.testing.assert_allclose(p.grad.numpy(), [0.6, 0.8], rtol=1e-6)
    assert optim.clip_grad_norm_(p, math.inf) == pytest.approx(1.0)


def test_bc_18_clipping_zero_gradients_leaves_zeros():
    p = parameter([0.0, 0.0])
    assert optim.clip_grad_norm_([p], 1.0) == 0.0
    give(p, [0.0, 0.0])
    assert optim.clip_grad_norm_([p], 1.0) == 0.0
    assert (p.grad.numpy() == 0).all()
    give(p, [math.inf, 0.0])
    with pytest.raises(RuntimeError, match="inf"):
        optim.clip_grad_norm_([p], 1.0, error_if_nonfinite=True)


def test_bc_36_schedule_edges():
    """BC-36: schedule edges."""

    def at(schedule, steps):
        return [round(schedule(t), 6) for t in steps]

    assert at(optim.cosine(1.0, 12, 4, 0.1), (0, 1, 3, 4, 8, 12, 13)) == [0.2, 0.4, 0.8, 1.0, 0.55, 0.1, 0.1]
    assert at(optim.cosine(1.0, 4, 4, 0.1), (3, 4, 5)) == [0.8, 1.0, 0.1]
    assert at(optim.cosine(1.0, 2, 0, 0.1), (0, 1, 2, 3)) == [1.0, 0.55, 0.1, 0.1]
    assert at(optim.linear(1.0, 4, 0, 0.2), (0, 2, 4, 5)) == [1.0, 0.6, 0.2, 0.2]
    assert at(optim.cosine(1.0, 0), (0, 1)) == [1.0, 0.0]
    assert at(optim.cosine(1.0, 1), (0, 1)) == [1.0, 0.0]
    with pytest.raises(ValueError, match="warm-up of 5 in 4"):
        optim.linear(1.0, 4, 5)


def test_state_is_plain_apart_from_its_arrays():
    p = parameter([1.0])
    o = optim.AdamW([p])
    give(p, [1.0])
    o.step()
    state = o.state_dict()
    state["state"] = {k: {n: v for n, v in s.items() if n == "step"} for k, s in state["state"].items()}
    assert json.loads(json.dumps(state))["state"] == {"0": {"step": 1}}
