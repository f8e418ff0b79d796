"""PyTorch's own sample inputs of each operation: the same values and the same gradients."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest

import tinygrad_tf as tg
from tinygrad_tf.nn import functional as F
from tinygrad_tf.ops.table import FUNCTIONS, METHODS

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # PyTorch's samples need it
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    samples = pytest.importorskip("torch.testing._internal.common_methods_invocations")

#: How many samples of an operation are tried, spread over all of them.
SAMPLES = 12
#: Wrapped in a function with other arguments there; random; a norm of singular values, which is not here.
SKIPPED = {"einsum", "where", "nn.functional.embedding", "nn.functional.dropout", "norm nuc"}


def ours(name: str) -> Any:
    """Our operation of PyTorch's name, or None."""
    head, _, last = name.rpartition(".")
    if head == "nn.functional":
        return getattr(F, last, None)
    if head == "linalg":
        return getattr(tg.linalg, last, None)
    return getattr(tg, name) if name in METHODS or name in FUNCTIONS else None


OPERATIONS = [
    op
    for op in samples.op_db
    if torch.float64 in op.dtypes
    and ours(op.name) is not None
    and f"{op.name} {op.variant_test_name}".strip() not in SKIPPED
]


def converted(x: Any) -> Any:
    """PyTorch's arguments as ours."""
    if isinstance(x, torch.Tensor):
        mine = tg.tensor(x.detach().numpy())
        return mine.requires_grad_() if x.requires_grad else mine
    if isinstance(x, (list, tuple)):
        return [converted(y) for y in x] if isinstance(x, list) else tuple(converted(y) for y in x)
    return np.dtype(str(x).split(".")[1]) if isinstance(x, torch.dtype) else x


def tensors(x: Any) -> list[Any]:
    """All tensors in nested lists."""
    if isinstance(x, (list, tuple)):
        return [t for y in x for t in tensors(y)]
    return [x] if isinstance(x, (torch.Tensor, tg.Tensor)) else []


def differs(sample: Any, name: str) -> bool:
    """Where the design wants something else, or PyTorch's own function is not defined."""
    options = sample.kwargs
    causal = (
        options.get("is_causal") and sample.input.shape[-2] != sample.args[0].shape[-2]
    )  # aligned bottom-right here
    causal = causal or name.endswith("attention") and sample.input.ndim != sample.args[0].ndim  # refused here
    no_channels = name.endswith("batch_norm") and sample.input.ndim < 2
    return bool(causal or options.get("dropout_p") or no_channels)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPERATIONS, ids=lambda op: f"{op.name} {op.variant_test_name}".strip())
def test_samples(op: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = list(itertools.islice(op.sample_inputs("cpu", torch.float64, requires_grad=op.supports_autograd), 100))
    compared = 0
    for sample in found[:: max(1, len(found) // SAMPLES)]:
        if differs(sample, op.name):
            continue
        arguments, options = [sample.input, *sample.args], sample.kwargs
        wanted = op.op(*arguments, **options)
        my_arguments, my_options = converted(arguments), {k: converted(v) for k, v in options.items()}
        out = ours(op.name)(*my_arguments, **my_options)
        wanted, out = ([x] if not isinstance(x, (list, tuple)) else list(x) for x in (wanted, out))
        assert len(out) == len(wanted)
        for mine, theirs in zip(out, wanted, strict=True):
            mine, theirs = np.asarray(getattr(mine, "_data", mine)), np.asarray(torch.as_tensor(theirs).detach())
            assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
            np.testing.assert_allclose(mine, theirs, rtol=1e-7, atol=1e-9)
        compared += 1
        inputs = tensors([arguments, list(options.values())])
        mine = [
            m
            for m, t in zip(tensors([my_arguments, list(my_options.values())]), inputs, strict=True)
            if t.requires_grad
        ]
        inputs = [t for t in inputs if t.requires_grad]
        live = [n for n, w in enumerate(wanted) if isinstance(w, torch.Tensor) and w.requires_grad]
        if not live or not inputs:
            continue
        seeds = [np.random.default_rng(n).standard_normal(tuple(wanted[n].shape)) for n in live]
        try:
            theirs = torch.autograd.grad(
                [wanted[n] for n in live], inputs, [torch.tensor(s) for s in seeds], allow_unused=True
            )
        except RuntimeError:  # PyTorch has no derivative
            continue
        gradients = tg.grad([out[n] for n in live], mine, seeds, allow_unused=True)
        for g, w in zip(gradients, theirs, strict=True):
            g = 0.0 if g is None else g.numpy()
            np.testing.assert_allclose(g, np.zeros_like(g) if w is None else w.numpy(force=True), rtol=1e-6, atol=1e-8)
    assert compared or not found or op.name.endswith("attention")
