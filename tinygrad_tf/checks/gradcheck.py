"""Gradcheck: the gradients that the engine computes against central differences, in float64.

For outputs y = f(x) and a cotangent u, the vector-Jacobian product u^T J is computed by backward, and each of its elements
again as (u^T f(x + eps e_i) - u^T f(x - eps e_i)) / (2 eps), whose error falls as eps^2 until rounding takes over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .. import graph, modes, rng
from ..graph import Array, TensorBase


class GradcheckError(AssertionError):
    """The analytic gradient is not the numeric one; the text names the worst element."""


class _Problem:
    """A function with its differentiable inputs (and a module's parameters) as float64 leaves that can be nudged."""

    def __init__(self, fn: Callable[..., Any], inputs: Any, name: str):
        self.fn, self.name = fn, name
        self.originals = list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]
        self.leaves: list[tuple[str, TensorBase]] = []
        self.inputs: list[Any] = []
        for i, value in enumerate(self.originals):
            if isinstance(value, TensorBase) and value._requires_grad:
                self._check_dtype(f"input {i}", value)
                value = graph._wrap(np.array(value._data, order="C"), True)  # a private, writable copy
                self.leaves.append((f"input {i}", value))
            self.inputs.append(value)
        if hasattr(fn, "named_parameters"):
            for label, parameter in fn.named_parameters():
                if parameter._requires_grad:
                    self._check_dtype(f"parameter {label}", parameter)
                    self.leaves.append((f"parameter {label}", parameter))
        if not self.leaves:
            raise ValueError(f"{name}: no input requires grad, so there is nothing to check; pass requires_grad=True")

    def _check_dtype(self, label: str, value: TensorBase) -> None:
        if value._data.dtype != np.float64:
            raise TypeError(
                f"{self.name}: {label} is {value._data.dtype}; finite differences need float64, since float32 keeps "
                "only 7 digits; convert with .double()"
            )

    def outputs(self) -> list[Any]:
        out = self.fn(*self.inputs)
        outs = list(out) if isinstance(out, (list, tuple)) else [out]
        floats = [o for o in outs if isinstance(o, TensorBase) and o._data.dtype.kind == "f"]
        if not floats:
            raise TypeError(
                f"{self.name}: the function must return a float Tensor or several, got {type(out).__name__}"
            )
        return floats

    def values(self) -> list[Array]:
        with modes.no_grad():
            return [np.array(o._data) for o in self.outputs()]


def _cotangents(shapes: Sequence[tuple[int, ...]], mode: str, generator: np.random.Generator) -> Any:
    """Every basis cotangent of all outputs, or three random ones."""
    if mode == "fast":
        for _ in range(3):
            yield [generator.standard_normal(s) for s in shapes]
        return
    for k, shape in enumerate(shapes):
        for index in np.ndindex(*shape):
            us = [np.zeros(s) for s in shapes]
            us[k][index] = 1.0
            yield us


def _numeric_jacobians(problem: _Problem, leaf: TensorBase, eps: float) -> list[Array]:
    """d(output)/d(leaf) for each output, as arrays of shape (*output.shape, leaf.size)."""
    flat = leaf._data.reshape(-1)  # leaves are C-contiguous: this is a view
    columns: list[list[Array]] = []
    for i in range(flat.size):
        before = flat[i]
        try:
            flat[i] = before + eps
            plus, up = problem.values(), flat[i]
            flat[i] = before - eps
            minus, down = problem.values(), flat[i]
        finally:
            flat[i] = before
        columns.append([(p - m) / (up - down) for p, m in zip(plus, minus, strict=True)])
    if not columns:  # an input without elements
        return [np.zeros((*value.shape, 0)) for value in problem.values()]
    return [np.stack(c, -1) for c in zip(*columns, strict=True)]


def _compare(problem: _Problem, *, eps: float, atol: float, rtol: float, mode: str) -> None:
    name = problem.name
    if mode not in ("full", "fast"):
        raise ValueError(f'{name}: mode must be "full" or "fast", got {mode!r}')
    state = rng.get_rng_state()
    outs = problem.outputs()
    shapes = [o._data.shape for o in outs]
    rng_moved = rng.get_rng_state() != state
    for first, second in zip([np.array(o._data) for o in outs], problem.values(), strict=True):
        if first.shape != second.shape or not np.array_equal(first, second, equal_nan=True):
            hint = " (it draws random numbers: call tg.manual_seed inside it, or use eval())" if rng_moved else ""
            raise GradcheckError(f"{name}: the function is not deterministic: two calls gave different values{hint}")
    if not any(o._requires_grad for o in outs):
        raise GradcheckError(
            f"{name}: no output depends on an input that requires grad; was the graph cut by detach() or numpy()?"
        )
    for k, o in enumerate(outs):
        if not np.isfinite(o._data).all():
            raise GradcheckError(f"{name}: output {k} has values that are not finite, so it has no gradient to check")
    jacobians = {label: _numeric_jacobians(problem, leaf, eps) for label, leaf in problem.leaves}
    leaves = [leaf for _, leaf in problem.leaves]
    live = [k for k, o in enumerate(outs) if o._requires_grad]
    worst: tuple[float, str] = (0.0, "")
    for us in _cotangents(shapes, mode, np.random.default_rng(0)):
        if not any(us[k].any() for k in live):
            continue
        analytic = graph.grad([outs[k] for k in live], leaves, [graph._wrap(us[k].astype(outs[k]._data.dtype)) for k in live],
                              retain_graph=True, allow_unused=True)  # fmt: skip
        for (label, leaf), found in zip(problem.leaves, analytic, strict=True):
            numeric = sum(np.tensordot(us[k], jacobians[label][k], us[k].ndim) for k in live)
            numeric = np.asarray(numeric).reshape(leaf._data.shape)
            if found is None:
                got = np.zeros(leaf._data.shape)
            else:
                got = found._data
            excess = np.abs(got - numeric) - (atol + rtol * np.abs(numeric))
            excess = np.where(np.isfinite(got), excess, np.inf)
            if excess.size and excess.max() > worst[0]:
                index = np.unravel_index(int(excess.argmax()), excess.shape)
                a, n = float(got[index]), float(numeric[index])
                place = "" if not index else f"[{', '.join(str(int(i)) for i in index)}]"
                missing = " (no gradient reached it at all)" if found is None else ""
                ratio = f", ratio {a / n:.6g}" if n else ""
                worst = (
                    float(excess.max()),
                    f"{label}{place}: analytic {a:.10g}, numeric {n:.10g}, difference {a - n:.3g}{ratio}{missing}",
                )
    if worst[1]:
        raise GradcheckError(
            f"{name}: the gradient is wrong; the worst element is {worst[1]} (eps {eps:g}, atol {atol:g}, rtol "
            f"{rtol:g})"
        )


def gradcheck(
    fn: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    mode: str = "full",
    raise_exception: bool = True,
) -> bool:
    """Check the gradients of `fn(*inputs)` against central differences (f(x + eps) - f(x - eps)) / (2 eps).

    Args:
        fn: a function of the inputs, or a Module, whose parameters are then checked too, tied ones once.
        inputs: a Tensor or a sequence; those that require grad are checked, on private copies. They must be float64.
        eps: the step. atol, rtol: an element passes if |analytic - numeric| <= atol + rtol |numeric|.
        mode: "full" checks every basis cotangent, "fast" three random ones.
        raise_exception: raise GradcheckError, which names the worst element; otherwise return False.

    >>> import tinygrad_tf as tg
    >>> x = tg.randn(3, dtype=tg.float64, requires_grad=True)
    >>> tg.gradcheck(lambda x: tg.tanh(x) * x, x)
    True
    """
    try:
        _compare(_Problem(fn, inputs, "gradcheck"), eps=eps, atol=atol, rtol=rtol, mode=mode)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def gradgradcheck(
    fn: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    mode: str = "full",
    raise_exception: bool = True,
) -> bool:
    """Check second derivatives: gradcheck of the gradient, as a function of the inputs and of the cotangents.

    Arguments as for `gradcheck`; `grad_outputs`: a cotangent for each output (default: random ones).

    >>> import tinygrad_tf as tg
    >>> x = tg.randn(3, dtype=tg.float64, requires_grad=True)
    >>> tg.gradgradcheck(lambda x: tg.exp(x) * x, x)
    True
    """
    problem = _Problem(fn, inputs, "gradgradcheck")
    outs = problem.outputs()
    generator = np.random.default_rng(1)
    if grad_outputs is None:
        grad_outputs = [graph._wrap(np.asarray(generator.standard_normal(o._data.shape)), True) for o in outs]
    else:
        grad_outputs = [grad_outputs] if isinstance(grad_outputs, TensorBase) else list(grad_outputs)
    n = len(problem.inputs)
    parameters = [leaf for label, leaf in problem.leaves if label.startswith("parameter")]

    class Gradient:
        """The first derivative, with the module's parameters still in sight."""

        def named_parameters(self) -> Any:
            return fn.named_parameters() if parameters else []  # type: ignore[attr-defined]

        def __call__(self, *args: Any) -> Any:
            own, us = args[:n], args[n:]
            asked = [a for a in own if isinstance(a, TensorBase) and a._requires_grad] + parameters
            with modes.enable_grad():
                out = fn(*own)
                outs = list(out) if isinstance(out, (list, tuple)) else [out]
                floats = [o for o in outs if isinstance(o, TensorBase) and o._data.dtype.kind == "f"]
                found = graph.grad(floats, asked, us, create_graph=True, allow_unused=True)
            return [f for f in found if f is not None]

    try:
        _compare(
            _Problem(Gradient(), [*problem.inputs, *grad_outputs], "gradgradcheck"),
            eps=eps,
            atol=atol,
            rtol=rtol,
            mode=mode,
        )
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True
