"""How a capture sees what a function computes: numpy's work through arrays that tell it, kernels through their launches.

A `Recorder` notes all of it as steps that can be done again, with the results in an arena. An operand must be known to it:
an input, a leaf, a constant, or the result of another step; for an unknown one it raises CaptureError.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import graph, kernels, modes
from .arena import Arena, in_arena, owner_of
from .graph import TensorBase
from .kernels.host import address
from .modes import Array, CaptureError, HooksError

SMALL = 64  # elements: arrays up to this size may be a kernel's settings


class _Traced(np.ndarray[Any, np.dtype[Any]]):
    """An array whose uses by numpy are noted by the recorder of the moment."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **kwargs: Any) -> Any:
        function = getattr(ufunc, method)
        if function == np.add.__call__ and not kwargs and kernels.elementwise.adds(*_plain(inputs), *_plain(out or ())):
            return _recorder().sum(*_plain(inputs), *_plain(out or ()))
        if out is not None or method == "at":
            targets = inputs[:1] if out is None else out
            plain = {} if out is None else {"out": _plain(out)}
            _recorder().apply(function, *_plain(inputs), **_plain(kwargs), **plain)
            return targets[0] if len(targets) == 1 else targets
        return _recorder().result(function, *_plain(inputs), **_plain(kwargs))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _recorder().result(function, *_plain(args), **_plain(kwargs))


def _recorder() -> Recorder:
    recorder: Recorder = modes._recorder.get()
    return recorder


def _result_method(name: str) -> Any:
    def method(self: _Traced, *args: Any, **kwargs: Any) -> Any:
        return _recorder().result(getattr(np.ndarray, name), _plain(self), *_plain(args), **_plain(kwargs))

    return method


def _refused_method(name: str) -> Any:
    def method(self: _Traced, *args: Any, **kwargs: Any) -> Any:
        raise CaptureError("Python reads a number that was computed from an input")

    return method


# Methods that compute without a ufunc. (Python's operators and sum, mean, max and the like are made of ufuncs.)
for _name in (
    "argmax argmin argpartition argsort astype choose clip compress copy cumprod cumsum diagonal dot flatten nonzero ravel "
    "repeat reshape round searchsorted std take trace var __getitem__"
).split():
    setattr(_Traced, _name, _result_method(_name))
for _name in "__bool__ __float__ __int__ __index__ __complex__ item tolist tobytes".split():
    setattr(_Traced, _name, _refused_method(_name))


def _in_place_method(name: str) -> Any:
    def method(self: _Traced, *args: Any, **kwargs: Any) -> None:
        _recorder().apply(getattr(np.ndarray, name), _plain(self), *_plain(args), **_plain(kwargs))

    return method


for _name in "__setitem__ fill partition put sort".split():
    setattr(_Traced, _name, _in_place_method(_name))


def _plain(value: Any) -> Any:
    """The value with ordinary arrays in place of traced ones; the owner itself where one is all of it."""
    if type(value) is _Traced:
        owner = owner_of(value)
        offset = address(value) - address(owner)
        if not offset and (owner.shape, owner.strides, owner.dtype) == (value.shape, value.strides, value.dtype):
            return owner
        if owner.flags.c_contiguous and owner.size:  # a view of the owner itself, as an operation would have made it
            return np.ndarray(value.shape, value.dtype, owner, offset, value.strides)
        return value.view(np.ndarray)
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_plain(v) for v in value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def _again(function: Callable[..., Any], args: Any, kwargs: Any, kept: list[Array]) -> None:
    """A step: compute, and put the results where they lay."""
    result = function(*args, **kwargs)
    for target, array in zip(kept, result if isinstance(result, (tuple, list)) else [result], strict=True):
        if target.shape != np.shape(array):
            raise CaptureError(f"a shape depends on the numbers: {target.shape} became {np.shape(array)}")
        np.copyto(target, array)


def launch(note: Array, n_tasks: int, arguments: Any) -> None:
    """Stands for a kernel's call among the steps; a program joins what follows on one another."""


def _no_numbers(self: Any) -> Any:
    raise CaptureError("it reads a tensor's grad")


_one_at_a_time = threading.Lock()


def _hidden() -> Any:
    """A Tensor whose numbers nobody may read: one for all threads."""
    with _one_at_a_time:
        return _made_hidden()


@functools.cache
def _made_hidden() -> Any:
    tensor: Any = graph._wrap
    return object.__new__(type("Hidden", (tensor,), {"__slots__": (), "_data": property(_no_numbers)}))


#: What asks numpy for shapes and dtypes, which a replay does not need to ask for again.
_ABOUT_ARRAYS = {
    np.result_type, np.can_cast, np.shape, np.ndim, np.size, np.may_share_memory, np.shares_memory, np.iscomplexobj,
    np.isrealobj, np.common_type, np.min_scalar_type,
}  # fmt: skip


class Recorder:
    """Runs what operations give it, and notes it as steps that can be done again: (function, arguments)."""

    def __init__(self, arena: Arena, inputs: Sequence[Array]):
        self.arena = arena
        self.steps: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
        self.held: dict[int, Array] = {}  # memory that stays where it is: inputs, leaves and constants, by their owner
        self.leaves: list[tuple[TensorBase, Array, bool]] = []
        self.modules: dict[int, tuple[Any, ...]] = {}
        self.gradients: list[tuple[TensorBase, Array]] = []
        self.states: dict[Any, tuple[Callable[[], Any], Callable[[Any], object]]] = {}
        self.before: list[tuple[Callable[[Any], object], Any]] = []
        self.guards: list[Callable[[], bool]] = []
        self.grads: dict[int, tuple[TensorBase, Any]] = {}  # leaves, and the `.grad` that each had before
        self.lengths: dict[int, Callable[[], int]] = {}
        for array in inputs:
            self.hold(array)

    def state(self, key: Any, save: Callable[[], Any], restore: Callable[[Any], object]) -> None:
        """Note a state outside that steps change, before the first change: `restore(save())` leaves it as it is."""
        if key not in self.states:
            self.states[key] = save, restore
            self.before.append((restore, save()))

    def go_back(self) -> None:
        for restore, value in self.before:
            restore(value)

    def grows(self, buffer: Array, length: Callable[[], int]) -> None:
        """Note memory of which only a part counts, along the last axis but one: `length()` at the moment."""
        self.hold(buffer)
        self.lengths[id(owner_of(buffer))] = length

    def length_of(self, array: Array) -> Callable[[], int] | None:
        """How to learn the length of an array that grows from replay to replay; None for all others."""
        return self.lengths.get(id(owner_of(array)))

    def hold(self, array: Array) -> Array:
        """Note memory that nobody else writes, or that is read as it is at each replay."""
        if not in_arena(array):
            owner = owner_of(array)
            self.held[id(owner)] = owner
        return array

    def knows(self, array: Array) -> bool:
        return in_arena(array) or id(owner_of(array)) in self.held or array.size == 0

    def owns(self, array: Array) -> bool:
        """Whether this is memory of results."""
        return in_arena(array)

    def require(self, name: str, arrays: Any) -> None:
        """Raise CaptureError for a result of an operation that no step computes."""
        for array in arrays if isinstance(arrays, (tuple, list)) else [arrays]:
            if isinstance(array, np.ndarray) and not self.knows(array):
                raise CaptureError(f"{name} computes with an array that is no operation's result")

    def given(self, values: Any, grows: bool = False) -> None:
        """Note the arguments of an operation: new ones are leaves and constants. `grows`: whether it knows arrays that grow."""
        for value in values:
            if isinstance(value, TensorBase):
                if not grows and self.length_of(value._data) is not None:
                    raise CaptureError("something else than attention computes with a cache's keys and values")
                if not self.knows(value._data):
                    if value._node is not None:
                        raise CaptureError(f"a tensor of shape {value._data.shape} from outside has a history")
                    self.leaves.append((value, value._data, value._requires_grad))
                    self.hold(value._data)
                elif value._node is None and not any([value is t for t, _, _ in self.leaves]):
                    if value._requires_grad or not in_arena(value._data):  # it shares memory that is known already
                        self.leaves.append((value, value._data, value._requires_grad))
            elif isinstance(value, np.ndarray):
                self.hold(value)
            elif isinstance(value, (tuple, list)):
                self.given(value)

    def module(self, module: Any) -> None:
        """Note that a module was called, in its mode."""
        if module._forward_hooks or module._forward_pre_hooks:
            raise HooksError(f"{type(module).__name__} has hooks")
        self.mode(module)

    def mode(self, module: Any) -> None:
        """Note the mode of a module that somebody may have asked for."""
        parameters = module._parameters
        found = module.__dict__["training"], type(module).forward, parameters, list(parameters.values())
        self.modules[id(module)] = weakref.ref(module), *found

    def plain(self, values: Any) -> Any:
        return _plain(values)

    # -- memory

    def empty(self, shape: Any, dtype: Any) -> Array:
        return self.arena.empty(shape, dtype)

    def sum(self, a: Array, b: Array, out: Array | None = None) -> Any:
        """a + b of one shape by a kernel: on all threads, and launches on both sides stay together."""
        kept = self.empty(a.shape, a.dtype) if out is None else out
        kernels.elementwise.add(a, b, kept)
        return self.traced(kept)

    def _like(self, array: Array) -> Array:
        """A new array of this shape, dtype and order of axes in memory, on which later sums depend in their last bits."""
        order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
        if order == sorted(order):
            return self.empty(array.shape, array.dtype)
        inverse = sorted(range(array.ndim), key=order.__getitem__)
        return self.empty(tuple([array.shape[axis] for axis in order]), array.dtype).transpose(inverse)

    def fixed(self, value: Any) -> Any:
        """A step's argument: arrays without a claim on their memory, which later steps may use again."""
        if isinstance(value, np.ndarray):
            return self.arena.fixed(_plain(value))
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return type(value)(self.fixed(v) for v in value)
        return value

    # -- steps

    def step(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        if kwargs:
            function = functools.partial(function, **{k: self.fixed(v) for k, v in kwargs.items()})
        self.steps.append((function, tuple([self.fixed(a) for a in args])))

    def launch(self, arguments: Any, n_tasks: int, note: Callable[[Any], Array]) -> None:
        """Note the call of a kernel, which has just been made: `note` gives it in the form that `replayer` wants."""
        for a in arguments:
            if isinstance(a, np.ndarray) and a.size > SMALL and a.dtype != np.int64:
                self.require("a kernel", a)
        fixed = self.fixed(arguments)
        self.steps.append((launch, (note(fixed), n_tasks, fixed)))

    def apply(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Do and note what writes into its arguments."""
        function(*args, **kwargs)
        self.step(function, *args, **kwargs)

    def result(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Do and note what gives new arrays, or views of known ones, which need no step."""
        result = function(*args, **kwargs)
        if function in _ABOUT_ARRAYS:
            return result
        if result is None:
            self.step(function, *args, **kwargs)
            return None
        several = isinstance(result, (tuple, list))
        parts = [np.asarray(part) for part in (result if several else [result])]
        if function is not np.count_nonzero and not all(
            [isinstance(part, (np.ndarray, np.generic)) for part in (result if several else [result])]
        ):
            raise CaptureError(f"numpy's {function.__name__} tells Python about numbers")
        if all(part.size and self.knows(part) for part in parts):  # an empty one may not always be so
            kept = parts
        else:
            kept = [self._like(part) for part in parts]
            for target, part in zip(kept, parts, strict=True):
                np.copyto(target, part)
            if isinstance(getattr(function, "__self__", None), np.ufunc) or isinstance(function, np.ufunc):
                self.step(function, *args, **kwargs, out=tuple(kept))
            else:
                fixed = {k: self.fixed(v) for k, v in kwargs.items()}
                self.steps.append((_again, (function, self.fixed(args), fixed, self.fixed(kept))))
        return tuple([self.traced(k) for k in kept]) if several else self.traced(kept[0])

    def traced(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.view(_Traced)
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return type(value)(self.traced(v) for v in value)
        return value

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """function(*args), noting what numpy does in it."""
        result = _plain(function(*[self.traced(a) for a in args]))
        self.require(getattr(function, "__name__", "an operation"), result)
        return result

    def watch(self, leaf: TensorBase) -> None:
        """Put what nobody may read in place of the leaf's `.grad`, until `unwatch`: replays neither read nor set it."""
        if id(leaf) not in self.grads:
            self.grads[id(leaf)] = leaf, leaf.grad
            leaf.grad = _hidden()
        elif type(leaf.grad) is not type(_hidden()):
            raise CaptureError("it sets a tensor's grad")

    def unwatch(self) -> bool:
        """Give the leaves their `.grad` again; False if somebody has set one meanwhile."""
        untouched = all([type(leaf.grad) is type(_hidden()) for leaf, _ in self.grads.values()])
        for leaf, grad in self.grads.values():
            leaf.grad = grad
        return untouched

    def gradient(self, leaf: TensorBase, value: Any, own: bool) -> None:
        """Take a leaf's whole gradient."""
        self.watch(leaf)
        if isinstance(value, TensorBase):
            raise CaptureError("backward with create_graph")
        whole = own and value.flags.c_contiguous
        self.gradients.append((leaf, value if whole else modes.copied(value)))
