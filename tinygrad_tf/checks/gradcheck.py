"""Gradcheck: the gradients that the engine computes against central differences, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .. import graph, modes
from ..graph import TensorBase
from ..ops.elementwise import clone
from .blame import blame, spoiler
from .compare import Tolerance, check
from .problem import GradcheckError, Problem
from .report import failure
from .walk import float32_operation, random_operation, source


def _run(problem: Problem, tolerance: Tolerance, mode: str, raise_exception: bool) -> bool:
    __tracebackhide__ = True  # pytest shows the report, not this package's inside
    if mode not in ("full", "fast"):
        raise ValueError(f'{problem.name}: mode must be "full" or "fast", got {mode!r}')
    try:
        with problem:
            try:
                result = check(problem, tolerance, mode)
            except GradcheckError as error:
                raise _with_operation(error, problem, tolerance) from None
            if result is None:
                return True
            finding = result[0]
            float32 = float32_operation(problem) if finding.kind == "float32" else None
            raise failure(problem, finding, blame(problem, finding, tolerance), tolerance, float32)
    except GradcheckError:
        if raise_exception:
            raise
        return False


def _with_operation(error: GradcheckError, problem: Problem, tolerance: Tolerance) -> GradcheckError:
    """Name the operation that gives a new result at each call, or whose backward does, or writes where it may not."""
    if error.diagnosis not in ("not deterministic", "writes into its gradient"):
        return error
    step, word = random_operation(problem) or (spoiler(problem, tolerance), "")
    if step is None:
        return error
    text = f"{error}; by {step.name}, called at {step.line}\n  operation      {step.name}, called at {step.line}\n                 {source(step.line)}"
    if word:
        text += f"\n                 its {word} is another one in each call: random numbers, a counter, or kept state?"
    return GradcheckError(text.rstrip(), diagnosis=error.diagnosis, operation=step.name, line=step.line)


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
        eps: the step, times the element where that is above 1. An element that disagrees is judged on many steps.
        atol, rtol: an element passes if |analytic - numeric| <= atol · min(1, largest entry) + rtol · |numeric|.
        mode: "full" checks every basis cotangent and element; "fast" three random projections in and out, and every
            element (a sample, of more than 4096) where these disagree, to explain it.
        raise_exception: raise GradcheckError (default True); otherwise return False.

    Inputs, parameters and buffers are left bit for bit as they were, also after an exception.

    Raises:
        GradcheckError: the gradient is wrong, or cannot be judged at this point (a kink). Its text names the worst
            element, shows the error against eps, and says which pattern of fault it is and which operation's rule has
            it; `diagnosis`, `operation` and `line` have these as attributes.
        TypeError: an input or parameter is not float64. ValueError: nothing requires grad, or another mode.

    >>> import tinygrad_tf as tg
    >>> x = tg.randn(3, dtype=tg.float64, requires_grad=True)
    >>> tg.gradcheck(lambda x: tg.tanh(x) * x, x)
    True
    """
    problem = Problem(fn, inputs, "gradcheck")
    return _run(problem, Tolerance(eps, atol, rtol), mode, raise_exception)


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
    first = Problem(fn, inputs, "gradgradcheck")
    with modes.enable_grad(), first:
        outs = first.outputs()
    generator = np.random.default_rng(1)
    if grad_outputs is None:
        grad_outputs = [graph._wrap(np.asarray(generator.standard_normal(o._data.shape)), True) for o in outs]
    else:
        grad_outputs = [grad_outputs] if isinstance(grad_outputs, TensorBase) else list(grad_outputs)
    second = Problem(_Gradient(fn, len(first.inputs)), [*first.originals, *grad_outputs], "gradgradcheck")
    return _run(second, Tolerance(eps, atol, rtol), mode, raise_exception)


class _Gradient:
    """The first derivative, with the module's parameters still in sight."""

    def __init__(self, fn: Any, inputs: int):
        self.fn, self.count = fn, inputs
        if hasattr(fn, "named_buffers"):
            self.named_buffers = fn.named_buffers

    def named_parameters(self) -> Any:
        return self.fn.named_parameters() if hasattr(self.fn, "named_parameters") else []

    def __call__(self, *args: Any) -> Any:
        own, us = args[: self.count], args[self.count :]
        asked = [a for a in _flat(own) if isinstance(a, TensorBase) and a._requires_grad]
        asked += [p for _, p in self.named_parameters() if p._requires_grad]
        with modes.enable_grad():
            out = self.fn(*_copies(own))  # which may be written in place
            outs = list(out) if isinstance(out, (list, tuple)) else [out]
            floats = [o for o in outs if isinstance(o, TensorBase) and o._data.dtype.kind == "f"]
            found = graph.grad(floats, asked, us, create_graph=True, allow_unused=True)
        return [f for f in found if f is not None]


def _copies(values: Any) -> list[Any]:
    return [
        _copies(v) if isinstance(v, (list, tuple)) else clone(v) if isinstance(v, TensorBase) else v for v in values
    ]


def _flat(values: Any) -> list[Any]:
    return [v for value in values for v in (_flat(value) if isinstance(value, (list, tuple)) else [value])]
