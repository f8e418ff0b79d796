"""Modes that hold inside a `with` block, per thread and context: recording or not, kernels or definitions, watching for NaN."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, TypeVar, cast

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Function_ = TypeVar("Function_", bound=Callable[..., Any])

_grad_enabled: ContextVar[bool] = ContextVar("grad_enabled", default=True)
_reference: ContextVar[bool] = ContextVar("reference", default=False)
_anomaly: ContextVar[bool] = ContextVar("anomaly", default=False)
_records: ContextVar[list[Any] | None] = ContextVar("records", default=None)
_profile: ContextVar[Any] = ContextVar("profile", default=None)
_packer: ContextVar[Callable[[Array], Callable[[], Array] | None] | None] = ContextVar("packer", default=None)
_recorder: ContextVar[Any] = ContextVar("recorder", default=None)


changes = [0]  # how often an attribute of a module was set: a capture may depend on it


class CaptureError(RuntimeError):
    """`tg.capture` cannot follow the function; the message says at what."""


class HooksError(CaptureError):
    """Hooks are at work, which a replay would not call: there is no capture while they are."""


def compute(function: Callable[..., Any], *args: Any) -> Any:
    """function(*args), numpy's work on ndarrays, so that a capture can do it again."""
    recorder = _recorder.get()
    return function(*args) if recorder is None else recorder.run(function, *args)


def copied(array: Array) -> Array:
    """A copy, C-contiguous."""
    return cast(Array, compute(lambda a: a.copy(), array))


def converted(array: Array, dtype: Any) -> Array:
    """The array in this dtype: itself if it has it."""
    return array if array.dtype == dtype else cast(Array, compute(lambda a: a.astype(dtype), array))


class Length(int):
    """How much a cache holds, and how to ask it again: what a capture's replays do."""

    now: Callable[[], int]


def rows(table: Any, first: int, n: int) -> Array:
    """table[first : first + n] as an ndarray; where `first` is a Length, a capture's replays read what then stands there."""
    recorder, given = _recorder.get(), table
    table = getattr(table, "_data", table)
    if recorder is None or not isinstance(first, Length):
        return cast(Array, table[first : first + n])
    recorder.given([given])
    recorder.guards.append(lambda: first.now() + n <= len(table))  # else it is recorded again, with a longer table
    out: Array = recorder.empty((n, *table.shape[1:]), table.dtype)
    recorder.apply(_copy_rows, out, recorder.hold(table), first.now)
    return out


def _copy_rows(out: Array, table: Array, first: Callable[[], int]) -> None:
    start = first()
    out[...] = table[start : start + len(out)]


def check(function: Callable[..., Any], *args: Any) -> None:
    """function(*args), which raises or returns nothing; a capture's replays do it again."""
    recorder = _recorder.get()
    if recorder is None:
        function(*args)
    else:
        recorder.apply(function, *recorder.plain(args))


def not_captured(what: str) -> None:
    """Raise CaptureError inside a capture: what follows is Python's work, and a replay would leave it out."""
    if _recorder.get() is not None:
        raise CaptureError(what)


def check_written(array: Array) -> None:
    """Raise CaptureError inside a capture, before anything is written, for memory that is not of the function's own results.

    The judge runs the function and its replay, so what they leave outside would be written twice.
    """
    recorder = _recorder.get()
    if recorder is not None and not recorder.owns(array):
        raise CaptureError("it changes a tensor in place that it has not computed: an argument, a buffer or a constant")


def written(function: Callable[..., Any], array: Array, *args: Any) -> None:
    """function(array, *args), which writes into the array."""
    check_written(array)
    compute(function, array, *args)


class Mode(contextlib.ContextDecorator):
    """Sets a context variable inside a `with` block, or inside a decorated function; a generator function's every step."""

    def __init__(self, variable: ContextVar[Any], value: Any):
        self._variable, self._value = variable, value
        self._tokens: list[Any] = []

    def __enter__(self) -> Any:
        self._tokens.append(self._variable.set(self._value))
        return self._value

    def __exit__(self, *_: object) -> None:
        self._variable.reset(self._tokens.pop())

    def _recreate_cm(self) -> Mode:
        return Mode(self._variable, self._value)

    def __call__(self, function: Function_) -> Function_:
        if not inspect.isgeneratorfunction(function):
            return super().__call__(function)

        @functools.wraps(function)
        def stepwise(*args: Any, **kwargs: Any) -> Any:
            with self._recreate_cm():
                generator = function(*args, **kwargs)
            step: Callable[[], Any] = functools.partial(next, generator)
            while True:
                with self._recreate_cm():
                    try:
                        value = step()
                    except StopIteration as stop:
                        return stop.value
                try:
                    sent = yield value
                    step = functools.partial(generator.send, sent)
                except GeneratorExit:
                    generator.close()
                    raise
                except BaseException as error:
                    step = functools.partial(generator.throw, error)

        return cast(Function_, stepwise)


def no_grad() -> Mode:
    """Nothing is recorded inside: `with tg.no_grad():`, or `@tg.no_grad()` on a function or generator function.

    >>> import tinygrad_tf as tg
    >>> x = tg.ones(2, requires_grad=True)
    >>> with tg.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """
    return Mode(_grad_enabled, False)


def enable_grad() -> Mode:
    """Operations are recorded inside, also within `no_grad`."""
    return Mode(_grad_enabled, True)


def is_grad_enabled() -> bool:
    """Whether operations are recorded now, in this thread and context."""
    return _grad_enabled.get()


def reference() -> Mode:
    """Inside, fused operations run as their plain definitions, made of primitives, instead of their kernels.

    A user who doubts a number can compute it both ways. What counts is the mode at the forward.

    >>> import tinygrad_tf as tg
    >>> x = tg.tensor([1.0, 2.0, 3.0])
    >>> with tg.reference():
    ...     y = tg.softmax(x, -1)
    >>> bool(abs(y - tg.softmax(x, -1)).max() < 1e-6)
    True
    """
    return Mode(_reference, True)


def detect_anomaly() -> Mode:
    """Inside, the first operation that turns finite numbers into NaN or Inf, forward or backward, raises FloatingPointError.

    The error names the operation and the user's source line. An operation that is given an Inf on purpose (a mask of
    -inf) is passed over. Costs a pass over every result.
    """
    return Mode(_anomaly, True)
