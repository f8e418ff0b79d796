"""`capture`: a function of tensors, recorded once as a list of kernel calls, and from then on replayed without Python.

A training step of a small model spends as much time in Python (modules, the graph, checks, allocations) as in its kernels,
and for the same shapes the same Python comes to the same kernel calls in every step. While the function runs as it always
does, a `Recorder` notes them, with all results in an `Arena`, so that each array lies where it lay before.

Nothing may slip through unseen: a step is refused whose operand the recorder does not know. And before a program is used,
it is judged: its memory is filled with NaN, and its replay on new inputs must give what the function itself gives for
them, bit for bit. It is judged again when an input changes that had not changed before.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import itertools
import operator
import os
import random
import sys
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import graph, modes
from .arena import Arena
from .config import config
from .graph import TensorBase
from .kernels.host import get_num_threads
from .memory import give_back_freed_memory
from .modes import Array, CaptureError, HooksError
from .tracing import Recorder, launch

PROGRAMS = 8  # kept for a function, one for each list of shapes


class _Place:
    """Stands between a gradient's array and its memory, so that every view of the array holds the array itself."""

    def __init__(self, array: Array):
        self.__array_interface__ = array.__array_interface__
        self.array = array


class _Gradient:
    """A leaf, and the Tensor that it is handed when a replay has computed its gradient, again and again the same."""

    def __init__(self, leaf: TensorBase, array: Array):
        self.leaf = leaf
        self.array = np.asarray(_Place(array))
        self.tensor = graph._wrap(self.array)
        self.unheld = self._references()

    def _references(self) -> tuple[int, int]:
        return sys.getrefcount(self.array), sys.getrefcount(self.tensor)

    def release(self) -> bool:
        """Make sure that nobody else has the memory, before it is written again; False if somebody holds an array of it."""
        if self._as_it_was() and self._references() == self.unheld:
            return True
        if self.tensor._data is self.array:
            self.tensor._data = self.array.copy()  # it is theirs now
        self.tensor = graph._wrap(self.array)
        return self._references() == self.unheld

    def _as_it_was(self) -> bool:
        tensor = self.tensor
        return tensor._data is self.array and not tensor._requires_grad and tensor._hooks is None is tensor.grad

    def deliver(self) -> None:
        if self.leaf.grad is None:
            self.leaf.grad = self.tensor
        else:
            graph._accumulate(self.leaf, self.array, False)


def _is_as_it_was(reference: Any, training: bool, forward: Any, table: Any, parameters: list[Any]) -> bool:
    module = reference()
    return (
        module is not None  # a program holds no module, which may hold what was captured
        and module.__dict__["training"] is training
        and not module._forward_hooks
        and not module._forward_pre_hooks
        and type(module).forward is forward
        and all(map(operator.is_, table.values(), parameters))
    )


class _Program:
    """The steps of one call, and where its inputs and results lie."""

    def __init__(self, recorder: Recorder, inputs: list[Array], outputs: Any):
        self.inputs, self.outputs = inputs, outputs
        self.arena, self.held = recorder.arena, recorder.held
        self.noted = recorder.steps  # holds what the launches read
        self.steps = _joined(recorder.steps)
        self.leaves = recorder.leaves
        self.modules = list(recorder.modules.values())
        self.gradients = [_Gradient(leaf, self.arena.fixed(a)) for leaf, a in recorder.gradients]
        self.states, self.before = list(recorder.states.values()), recorder.before
        self.guards = recorder.guards
        self.changes = modes.changes[0]
        self.unseen = {i: array.copy() for i, array in enumerate(inputs)}  # what did not differ at any judgement

    def fits(self) -> bool:
        """Whether leaves and modules are as they were."""
        return (
            modes.changes[0] == self.changes
            and all([guard() for guard in self.guards])
            and all([t._data is data and t._requires_grad is needs for t, data, needs in self.leaves])
            and all([_is_as_it_was(*module) for module in self.modules])
            and not any([gradient.leaf._hooks for gradient in self.gradients])
        )

    def differing(self, arrays: Sequence[Array]) -> list[int]:
        """Which inputs are not what they were at the recording, for the first time."""
        return [i for i, first in self.unseen.items() if not np.array_equal(first, arrays[i])]

    def replay(self, arrays: Sequence[Array]) -> None:
        """Do all steps again for these inputs; raises what a step raises, and everything is then as it was before."""
        self.before = [(restore, save()) for save, restore in self.states]
        for target, array in zip(self.inputs, arrays, strict=True):
            np.copyto(target, array)
        from .kernels import runtime

        try:
            with runtime.lock, np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                for function, arguments in self.steps:
                    function(*arguments)
        except BaseException:
            self.go_back()
            raise

    def go_back(self) -> None:
        """Undo what the last replay, or the recording, did to the states that are not the program's own."""
        for restore, value in self.before:
            restore(value)

    def release(self) -> bool:
        """Let go of the gradients that were handed out; False if somebody holds an array of one."""
        return all([gradient.release() for gradient in self.gradients])

    def deliver(self) -> Any:
        """Add the gradients to the leaves, and return the outputs."""
        for gradient in self.gradients:
            gradient.deliver()
        return _outputs(self.outputs, lambda array: graph._wrap(array.copy()))

    def digest(self) -> bytes:
        """What tells one outcome from another."""
        digest = hashlib.blake2b(repr(_outputs(self.outputs, np.shape)).encode())
        arrays = [gradient.array for gradient in self.gradients]
        _outputs(self.outputs, arrays.append)
        for array in arrays:
            digest.update(np.ascontiguousarray(array).data.cast("B") if array.size else b"")
        return digest.digest()


def _joined(steps: list[Any]) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """The steps, with launches that follow on one another as one, in which there is no Python."""
    from .kernels import runtime

    joined: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
    for launched, group in itertools.groupby(steps, key=lambda step: step[0] is launch):
        if launched:
            notes = [arguments for _, arguments in group]
            joined.append((runtime.replayer([n[0] for n in notes], [n[1] for n in notes]), ()))
        else:
            joined.extend(group)
    return joined


def _outputs(value: Any, function: Callable[[Array], Any]) -> Any:
    """The value with function(array) in place of each array."""
    if isinstance(value, np.ndarray):
        return function(value)
    if isinstance(value, (tuple, list)):
        return _like(value, [_outputs(v, function) for v in value])
    return value


def _like(value: Any, parts: list[Any]) -> Any:
    """A list or tuple of these parts, a named one if the value is."""
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


_NUMBERS = (bool, int, float, str)


class _Surroundings:
    """What a Python function finds outside itself: the variables that it closes over, and those of its file that it reads."""

    def __init__(self, function: Any):
        while isinstance(function, functools.partial):
            function = function.func
        function = getattr(function, "__func__", function)
        self.cells = getattr(function, "__closure__", None) or ()
        self.globals = getattr(function, "__globals__", {})
        code = getattr(function, "__code__", None)
        self.names = [] if code is None else sorted(_globals_of(code))

    def now(self) -> list[Any]:
        return [_content(cell) for cell in self.cells] + [self.globals.get(name) for name in self.names]

    def are(self, before: list[Any]) -> bool:
        """Whether every variable is the object that it was then, or an equal number."""
        return all(
            [
                a is b or (type(a) is type(b) and isinstance(a, _NUMBERS) and repr(a) == repr(b))
                for a, b in zip(self.now(), before, strict=True)
            ]
        )


def _globals_of(code: Any) -> set[str]:
    inner = [_globals_of(part) for part in code.co_consts if inspect.iscode(part)]
    own = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return own.union(*inner)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was assigned yet
        return None


class _State:
    """How far it is with inputs of these shapes: so many calls; a program, once there is one; why there is none."""

    def __init__(self) -> None:
        self.calls = 0
        self.program: _Program | None = None
        self.judged = False
        self.why: str | None = None


class Captured:
    """What `capture` makes of a function."""

    def __init__(self, function: Callable[..., Any], warn: bool):
        functools.update_wrapper(self, function, updated=())
        self._function, self._warn = function, warn
        self._states: OrderedDict[Any, _State] = OrderedDict()
        self._lock = threading.RLock()
        self._surroundings = _Surroundings(function)

    def __call__(self, *args: Any) -> Any:
        arrays = [a._data if isinstance(a, TensorBase) else a for a in args]
        for i, a in enumerate(args):
            if isinstance(a, TensorBase) and a._requires_grad:
                raise TypeError(
                    f"{self._name}: argument {i} requires grad; gradients go to the leaves that the function itself reads"
                )
        watched = modes._profile, modes._records, modes._anomaly, modes._packer, modes._reference, modes._recorder
        if any([mode.get() not in (None, False) for mode in watched]):
            return self._run(arrays)
        key: list[Any] = [modes._grad_enabled.get(), get_num_threads(), config.matmul, os.getpid()]
        for a in arrays:
            key.append((a.shape, a.dtype, a.flags.f_contiguous) if isinstance(a, np.ndarray) else _setting(a))
        with self._lock:
            return self._call(self._states.setdefault(tuple(key), _State()), tuple(key), arrays)

    def __reduce__(self) -> Any:
        return Captured, (self._function, self._warn)  # a copy, of a model that has it for instance, begins anew

    @property
    def _name(self) -> str:
        return f"capture({getattr(self._function, '__qualname__', self._function)})"

    @property
    def why(self) -> str | None:
        """Why it runs as it is, for inputs of some shapes at least; None while nothing speaks against a capture."""
        return next((s.why for s in self._states.values() if s.why is not None), None)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that its programs hold."""
        programs = [s.program for s in self._states.values() if s.program is not None]
        return sum(sum(program.arena.used) for program in programs)

    def _run(self, arrays: Sequence[Any]) -> Any:
        """Call the function as it is."""
        results = self._function(*[graph._wrap(a) if isinstance(a, np.ndarray) else a for a in arrays])
        return _detached(results)

    def _call(self, state: _State, key: Any, arrays: list[Any]) -> Any:
        self._states.move_to_end(key)
        while len(self._states) > PROGRAMS:
            self._states.popitem(last=False)
        program = state.program
        if program is not None and not program.fits():
            state.program = program = None
            state.calls, state.judged = 0, False
        state.calls += 1
        if state.why is not None or state.calls == 1:  # at the first call things are made that stay
            return self._run(arrays)
        if program is None:
            return self._record(state, arrays)
        if not program.release():
            return self._run(arrays)
        numbers = [a for a in arrays if isinstance(a, np.ndarray)]
        differing = program.differing(numbers)
        if differing or not state.judged:
            return self._judge(state, program, arrays, numbers, differing)
        try:
            program.replay(numbers)
        except CaptureError as error:
            return self._refuse(state, error, arrays)
        return program.deliver()

    def _record(self, state: _State, arrays: Sequence[Any]) -> Any:
        give_back_freed_memory()  # of the call before: what it computed lies in an arena from now on
        try:
            state.program = self._recorded(Arena(), arrays)
        except CaptureError as error:
            return self._refuse(state, error, arrays)
        return state.program.deliver()

    def _judge(
        self, state: _State, program: _Program, arrays: Sequence[Any], numbers: Sequence[Array], differing: list[int]
    ) -> Any:
        """Replay from memory full of NaN, and compare with what the function does in the same memory.

        At the first replay, and at the first one that could show that a changed input was not followed.
        """
        try:
            wanted = self._recorded(Arena(program.arena.chunks), arrays, [leaf for leaf, *_ in program.leaves])
        except CaptureError as error:
            return self._refuse(state, error, arrays)
        expected = wanted.digest()
        wanted.go_back()
        program.arena.poison()
        why = None
        try:
            program.replay(numbers)
            if program.digest() != expected:
                program.go_back()
                why = "its replay gave other numbers, so something that is no operation on tensors has a part in it"
        except Exception as error:
            why = f"its replay raised {type(error).__name__}: {error}"
        if why is not None:
            return self._refuse(state, CaptureError(why), arrays)
        state.judged = True
        for i in differing:
            del program.unseen[i]
        return program.deliver()

    def _recorded(self, arena: Arena, arrays: Sequence[Any], leaves: Sequence[TensorBase] = ()) -> _Program:
        """Run the function and note its steps; gradients stay in the program. Of these leaves it may not set them itself."""
        inputs = [np.array(a, order="K") for a in arrays if isinstance(a, np.ndarray)]
        recorder = Recorder(arena, inputs)
        surroundings, found = self._surroundings, self._surroundings.now()
        recorder.guards.append(lambda: surroundings.are(found))  # holds not self, or memory would wait for a collection
        fresh = iter(inputs)
        given = [graph._wrap(next(fresh)) if isinstance(a, np.ndarray) else a for a in arrays]
        token, changes, draws = modes._recorder.set(recorder), modes.changes[0], _foreign_draws()
        try:
            for leaf in leaves:
                recorder.watch(leaf)
            results = self._function(*given)
            if modes.changes[0] != changes:
                raise CaptureError("it sets attributes of modules")
            if repr(_foreign_draws()) != repr(draws):
                random.setstate(draws[0])
                np.random.set_state(draws[1])
                raise CaptureError("it draws random numbers that are not this package's")
            outputs = _detached(results, array=True)
            _outputs(outputs, lambda array: recorder.require("the function", array))
            if not recorder.unwatch():
                raise CaptureError("it sets a tensor's grad")
        except BaseException:
            recorder.go_back()
            recorder.unwatch()
            raise
        finally:
            modes._recorder.reset(token)
        return _Program(recorder, inputs, _outputs(outputs, arena.fixed))

    def _refuse(self, state: _State, why: CaptureError, arrays: Sequence[Any]) -> Any:
        """Run the function as it is; ever after, unless that is for hooks, which may be taken away again."""
        state.program, state.calls, state.judged = None, 0, False
        if not isinstance(why, HooksError):
            state.why = str(why)
            if self._warn:
                warnings.warn(f"{self._name} runs as it is, not captured: {why}", stacklevel=5)
        return self._run(arrays)


def _foreign_draws() -> tuple[Any, Any]:
    """The states of the random numbers that functions of Python and numpy draw."""
    return random.getstate(), np.random.get_state()


def _setting(value: Any) -> Any:
    """What tells settings apart: 1, 1.0 and True are equal, and so are 0.0 and -0.0."""
    if isinstance(value, tuple):
        return type(value), tuple([_setting(v) for v in value])
    return type(value), value, str(value) if isinstance(value, (float, np.generic)) else None


def _detached(results: Any, array: bool = False) -> Any:
    """What the function returned, without its history."""
    if isinstance(results, TensorBase):
        return results._data if array else graph._wrap(results._data)
    if isinstance(results, (tuple, list)):
        return _like(results, [_detached(r, array) for r in results])
    if array and not isinstance(results, (type(None), bool, int, float, str)):
        raise CaptureError(f"it returns {type(results).__name__}, not tensors")
    return results


def capture(function: Callable[..., Any], *, warn: bool = True) -> Captured:
    """The same function, which after a few calls replays its kernel calls without running its Python: small models train faster.

    What belongs in it is a forward pass, or a forward and a backward pass: `backward()` inside adds to the leaves' `.grad`
    as ever. What is Python's work stays outside: `zero_grad`, clipping, the optimizer's step, printing, `.item()`.

    Arguments:
        function: takes Tensors, ndarrays (it gets them as Tensors), and settings that can be compared; returns Tensors,
            None, or lists and tuples of them, which the caller gets as copies without history. Each list of shapes, dtypes and
            settings has a program of its own; the eight used last are kept.
        warn: whether to warn where it cannot be captured (default True).

    The first call runs the function as it is, the second records it, and the third does both: the replay, from memory full
    of NaN, must give what the function gives, bit for bit. This is done again when an argument, say a mask, differs for the
    first time. So the function must do nothing but compute.

    Parameters are read anew at each replay, dropout draws anew, and an `nn.KVCache` grows. It is recorded again after a
    parameter was replaced or frozen, an attribute of a module or a variable that the function names was set, or a mode was
    switched. While hooks are registered, and inside tg.profile(), tg.detect_anomaly() or tg.reference(), it runs as it is.

    A function that cannot be captured runs as it is ever after, with a warning that says why (so does `.why`): Python reads
    a tensor's numbers, random tensors are made, an array comes from numpy alone.

    Raises TypeError for an argument that requires grad, and at a replay, too, what operations raise for wrong
    numbers (an id out of range).

    >>> import tinygrad_tf as tg
    >>> w = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> @tg.capture
    ... def loss_and_gradient(x):
    ...     loss = ((w * x) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> for n in range(5):
    ...     w.grad = None
    ...     loss = loss_and_gradient(tg.tensor([1.0, float(n)]))
    >>> loss.item(), w.grad
    (65.0, tensor([ 2., 64.]))
    """
    return Captured(function, warn)
