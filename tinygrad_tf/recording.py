"""Who called which operation: records for diagnosis and profiles, and the check behind `detect_anomaly`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .modes import _records

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_ROOMS = tuple(os.path.join(os.path.dirname(_PACKAGE), room) + os.sep for room in ("nn", "models"))


class Record:
    """One operation that ran inside `record()`: its name, arguments, output, node and the user's source line."""

    def __init__(self, op: Any, args: Sequence[Any], output: Any, line: str):
        self.op, self.args, self.output, self.line = op, tuple(args), output, line

    def __repr__(self) -> str:
        return f"Record({self.op.name} at {self.line})"


@contextlib.contextmanager
def record() -> Iterator[list[Record]]:
    """Collects a `Record` of every operation on Tensors that runs inside.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import graph
    >>> with graph.record() as records:
    ...     y = tg.exp(tg.ones(2)) * 2
    >>> [r.op.name for r in records]
    ['exp', 'mul']
    """
    records: list[Record] = []
    token = _records.set(records)
    try:
        yield records
    finally:
        _records.reset(token)


def user_line() -> str:
    """`file:line` of the nearest caller outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_PACKAGE + os.sep, *_ROOMS)) and not file.startswith("<frozen"):
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def check_finite(name: str, outputs: Sequence[Any], inputs: Sequence[Any], line: str, where: str) -> None:
    """Raise FloatingPointError if an output holds NaN or Inf although every input is finite."""

    def finite(a: Any) -> bool:
        if isinstance(a, (list, tuple)):
            return all(finite(x) for x in a)
        a = getattr(a, "_data", a)
        is_number = isinstance(a, (float, np.floating)) or (isinstance(a, np.ndarray) and a.dtype.kind == "f")
        return not is_number or bool(np.isfinite(a).all())

    if not finite(list(outputs)) and finite(list(inputs)):
        kind = "NaN" if any(o is not None and np.isnan(getattr(o, "_data", o)).any() for o in outputs) else "Inf"
        raise FloatingPointError(
            f"{where} of {name} gave {kind} from finite numbers; the operation was called at {line}"
        )
