"""Every operation gives PyTorch's values, first and second derivatives, in float64."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf.nn import functional as F

torch = pytest.importorskip("torch")

_path = pathlib.Path(__file__).parents[1] / "ops" / "operation_cases.py"
_spec = importlib.util.spec_from_file_location("operation_cases", _path)
table = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(table)


def derivatives(package: Any, outs: list[Any], inputs: list[Any], make: Any) -> tuple[list[Any], list[Any]]:
    """The gradients for fixed random cotangents, and the gradients of those for other fixed random ones.

    Where PyTorch has no derivative, the list is empty.
    """
    generator = np.random.default_rng(7)
    outs = [o for o in outs if getattr(o, "requires_grad", False)]
    grad = package.grad if package is tg else package.autograd.grad
    seeds = [make(generator.standard_normal(tuple(o.shape))).requires_grad_() for o in outs]
    first: list[Any] = []
    try:
        if outs:
            first = grad(outs, inputs, seeds, create_graph=True, allow_unused=True)
        first = [x * 0.0 if g is None else g for x, g in zip(inputs, first, strict=False)]
        live = [(g, make(generator.standard_normal(tuple(g.shape)))) for g in first if g.requires_grad]
        if not live:
            return first, []
        second = grad([g for g, _ in live], inputs + seeds, [s for _, s in live], allow_unused=True)
        return first, [x * 0.0 if g is None else g for x, g in zip(inputs + seeds, second, strict=True)]
    except (RuntimeError, NotImplementedError) as error:
        if package is tg or not ("is not implemented" in str(error) or "invalid gradient" in str(error)):
            raise
        return first, []


def array(x: Any) -> Any:
    return x.numpy() if isinstance(x, tg.Tensor) else x.numpy(force=True) if hasattr(x, "detach") else np.asarray(x)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", table.cases(), ids=str)
def test_values_and_derivatives(case: Any) -> None:
    if case.name in ("rotary", "attention_weights", "split_heads", "merge_heads"):
        pytest.skip("PyTorch has no function of this kind")
    torch.set_num_threads(1)
    data = table.values(case)
    ours = [tg.tensor(v, requires_grad=True) for v in data]
    theirs = [torch.tensor(v, requires_grad=True) for v in data]
    out = table.run(case, tg, F, ours)
    wanted = table.run(case, torch, torch.nn.functional, theirs)
    assert len(out) == len(wanted)
    for o, w in zip(out, wanted, strict=True):
        assert tuple(np.shape(array(o))) == tuple(np.shape(array(w)))
        assert array(o).dtype == array(w).dtype
        np.testing.assert_allclose(array(o), array(w), rtol=1e-9, atol=1e-11)
    first, second = derivatives(tg, out, ours, tg.tensor)
    wanted_first, wanted_second = derivatives(torch, wanted, theirs, torch.tensor)
    assert len(first) == len(ours) or not wanted_first
    for g, w in zip(first, wanted_first, strict=False):
        np.testing.assert_allclose(array(g), array(w), rtol=1e-7, atol=1e-10, err_msg="first derivative")
    for n, (g, w) in enumerate(zip(second, wanted_second, strict=False)):
        np.testing.assert_allclose(array(g), array(w), rtol=1e-7, atol=1e-9, err_msg=f"second derivative {n}")
