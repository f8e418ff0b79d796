"""What a layer is: `Module` keeps parameters, buffers and modules by name; `Parameter` is a trained Tensor."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

import tinygrad_tf as tg

from .. import graph
from ..hooks import HookHandle
from ..modes import _profile, _recorder, changes, not_captured

M = TypeVar("M", bound="Module")


class Parameter(tg.Tensor):
    """A Tensor that a Module registers and an optimizer changes.

    Args:
        data: a floating-point Tensor, whose memory is shared, or an array, which is copied.
        requires_grad: whether it is trained (default True).

    Raises:
        TypeError: data is not of a floating-point dtype.

    >>> import numpy as np
    >>> from tinygrad_tf import nn
    >>> p = nn.Parameter(np.zeros((2, 3), dtype=np.float32))
    >>> p.shape, p.requires_grad
    ((2, 3), True)
    """

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True):
        is_tensor = isinstance(data, tg.Tensor)
        array = data._data if is_tensor else np.array(data)
        if array.dtype.kind != "f":
            raise TypeError(f"Parameter: expected floating-point values, which can be trained, got dtype {array.dtype}")
        shared = is_tensor and array.flags.writeable
        super().__init__(array if shared or not is_tensor else array.copy(), requires_grad)
        if shared:
            self._storage = data._storage
            self._version = data._storage.version

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copy = Parameter(self._data.copy(), self._requires_grad)
        if self.grad is not None:
            copy.grad = tg.Tensor(self.grad._data.copy())
        memo[id(self)] = copy
        return copy

    def __reduce__(self) -> tuple[Any, ...]:
        return Parameter, (self._data, self._requires_grad)


def _set_data(tensor: tg.Tensor, data: Any) -> None:
    """Give a Tensor another buffer while it stays the same object, so that whatever holds it keeps it."""
    tensor._data, tensor._storage, tensor._version = data, graph.Storage(), 0


class _Entry:
    """Finds a registered parameter or module by its name as an attribute: what is assigned over it comes first.

    A class gets one for each name that its instances register. Without, Python looks everywhere else, and raises an
    AttributeError, before it calls `__getattr__`: 1.5 us, a hundred times for each token that a model generates.
    """

    def __init__(self, table: str, name: str):
        self.table, self.name = table, name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            raise AttributeError(f"type object {owner.__name__!r} has no attribute {self.name!r}")
        try:
            return instance.__dict__[self.table][self.name]
        except KeyError:
            raise AttributeError(self.name) from None  # so `__getattr__` is asked


class Module:
    """A layer: parameters, buffers and modules that are found because they are attributes, and a `forward`.

    A subclass calls `super().__init__()` first, assigns its parameters and modules as attributes, and defines
    `forward`; calling the module runs its hooks and `forward`. A parameter or module that is reachable by several names
    (tied weights) is yielded once, under the first; `state_dict()` alone holds it under each.

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> class Scale(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.factor = nn.Parameter(tg.ones(1))
    ...     def forward(self, x):
    ...         return x * self.factor
    >>> [name for name, _ in Scale().named_parameters()]
    ['factor']
    """

    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, tg.Tensor | None]
    _modules: dict[str, Module | None]
    _non_persistent: set[str]
    _forward_pre_hooks: dict[int, Any]
    _forward_hooks: dict[int, Any]

    def __init__(self) -> None:
        for name in ("_parameters", "_buffers", "_modules", "_forward_pre_hooks", "_forward_hooks"):
            object.__setattr__(self, name, {})
        object.__setattr__(self, "_non_persistent", set())
        object.__setattr__(self, "training", True)

    def _forward_missing(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define forward(self, ...)")

    forward: Callable[..., Any] = _forward_missing

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if "_forward_hooks" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__}.__init__ must call super().__init__() first")
        recorder = _recorder.get()
        if recorder is not None:
            recorder.module(self)
        if not (self._forward_pre_hooks or self._forward_hooks) and _profile.get() is None:
            return self.forward(*args, **kwargs)
        for hook, with_kwargs in list(self._forward_pre_hooks.values()):
            result = hook(self, args, kwargs) if with_kwargs else hook(self, args)
            if result is not None:
                if with_kwargs:
                    args, kwargs = result
                else:
                    args = result if isinstance(result, tuple) else (result,)
        profile = _profile.get()
        if profile is None:
            output = self.forward(*args, **kwargs)
        else:
            profile.enter(self)
            try:
                output = self.forward(*args, **kwargs)
            finally:
                profile.leave()
        for hook, with_kwargs in list(self._forward_hooks.values()):
            result = hook(self, args, kwargs, output) if with_kwargs else hook(self, args, output)
            if result is not None:
                output = result
        return output

    @property
    def training(self) -> bool:
        """Whether it is in training mode: see `train`."""
        recorder = _recorder.get()
        if recorder is not None:
            recorder.mode(self)
        return self.__dict__["training"]  # type: ignore[no-any-return]

    @training.setter
    def training(self, value: bool) -> None:
        self.__dict__["training"] = value

    # -- registration --------------------------------------------------------------------------------------------------

    def __setattr__(self, name: str, value: Any) -> None:
        changes[0] += 1
        if "_modules" not in self.__dict__:
            if isinstance(value, (Parameter, Module)):
                raise AttributeError(f"{type(self).__name__}: call super().__init__() before assigning {name!r}")
            object.__setattr__(self, name, value)
        elif isinstance(value, Parameter):
            if name not in self._parameters:
                self._forget(name)
            self.register_parameter(name, value)
        elif isinstance(value, Module):
            if name not in self._modules:
                self._forget(name)
            self.register_module(name, value)
        elif name in self._parameters:
            if value is not None:
                raise TypeError(
                    f"{type(self).__name__}.{name} is a parameter: assign a Parameter or None, "
                    f"got {type(value).__name__}"
                )
            self._parameters[name] = None
        elif name in self._modules:
            if value is not None:
                raise TypeError(
                    f"{type(self).__name__}.{name} is a module: assign a Module or None, got {type(value).__name__}"
                )
            self._modules[name] = None
        elif name in self._buffers:
            if value is not None and not isinstance(value, tg.Tensor):
                raise TypeError(
                    f"{type(self).__name__}.{name} is a buffer: assign a Tensor or None, got {type(value).__name__}"
                )
            self._buffers[name] = value
        else:
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        for table in ("_parameters", "_modules", "_buffers"):
            entries = own.get(table)
            if entries and name in entries:
                return entries[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        changes[0] += 1
        if any(name in table for table in (self._parameters, self._buffers, self._modules)):
            self._forget(name)
        else:
            object.__delattr__(self, name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def _forget(self, name: str) -> None:
        for table in (self.__dict__, self._parameters, self._buffers, self._modules):
            table.pop(name, None)
        self._non_persistent.discard(name)

    def _check_name(self, name: str) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise ValueError(f"{type(self).__name__}: a name must be a non-empty string without a dot, got {name!r}")

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        """Keep a parameter under this name: what `self.name = parameter` does."""
        self._check_name(name)
        if parameter is not None and not isinstance(parameter, Parameter):
            raise TypeError(f"register_parameter({name!r}): expected a Parameter, got {type(parameter).__name__}")
        self._parameters[name] = parameter
        changes[0] += 1
        _make_quick(type(self), "_parameters", name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Keep a module under this name: what `self.name = module` does."""
        self._check_name(name)
        if module is not None and not isinstance(module, Module):
            raise TypeError(f"register_module({name!r}): expected a Module, got {type(module).__name__}")
        self._modules[name] = module
        changes[0] += 1
        _make_quick(type(self), "_modules", name)

    add_module = register_module

    def register_buffer(self, name: str, tensor: tg.Tensor | None, persistent: bool = True) -> None:
        """Keep a Tensor that is state but is not trained; `persistent=False` leaves it out of `state_dict()`."""
        self._check_name(name)
        if tensor is not None and not isinstance(tensor, tg.Tensor):
            raise TypeError(f"register_buffer({name!r}): expected a Tensor, got {type(tensor).__name__}")
        if name not in self._buffers and (name in self.__dict__ or name in self._parameters or name in self._modules):
            raise KeyError(f"register_buffer: {type(self).__name__} already has an attribute {name!r}")
        self._buffers[name] = tensor
        changes[0] += 1
        (self._non_persistent.discard if persistent else self._non_persistent.add)(name)

    def register_forward_pre_hook(self, hook: Callable[..., Any], *, with_kwargs: bool = False) -> HookHandle:
        """Call `hook(module, args)` before forward; what it returns, if not None, replaces the arguments.

        With `with_kwargs`, call `hook(module, args, kwargs)`, which returns None or `(args, kwargs)`.
        """
        return HookHandle(self._forward_pre_hooks, (hook, with_kwargs))  # type: ignore[arg-type]

    def register_forward_hook(self, hook: Callable[..., Any], *, with_kwargs: bool = False) -> HookHandle:
        """Call `hook(module, args, output)` after forward; what it returns, if not None, replaces the output.

        With `with_kwargs`, call `hook(module, args, kwargs, output)`.
        """
        return HookHandle(self._forward_hooks, (hook, with_kwargs))  # type: ignore[arg-type]

    # -- walking -------------------------------------------------------------------------------------------------------

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """This module, under `prefix`, and all below it, each once, under its first name."""
        found: dict[int, tuple[str, Module]] = {}
        ahead: list[tuple[str, Module]] = [(prefix, self)]
        while ahead:
            path, module = ahead.pop()
            if id(module) not in found:
                found[id(module)] = path, module
                below = [
                    (f"{path}.{name}" if path else name, m) for name, m in module._modules.items() if m is not None
                ]
                ahead.extend(reversed(below))
        return iter(found.values())

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below, each once."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules directly below, each once."""
        for _, module in self.named_children():
            yield module

    def _named_tensors(self, table: str, prefix: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self.named_modules(prefix) if recurse else [(prefix, self)]:
            for name, tensor in getattr(module, table).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield f"{path}.{name}" if path else name, tensor

    def named_parameters(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Parameter]]:
        """Every parameter once, under its first name."""
        return self._named_tensors("_parameters", prefix, recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Every parameter once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, tg.Tensor]]:
        """Every buffer once, under its first name."""
        return self._named_tensors("_buffers", prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[tg.Tensor]:
        """Every buffer once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    def num_parameters(self) -> int:
        """How many numbers are trained; tied weights count once."""
        return sum(p._data.size for p in self.parameters())

    # -- state ---------------------------------------------------------------------------------------------------------

    def _state(self, prefix: str = "") -> Iterator[tuple[str, tg.Tensor]]:
        """Every parameter and persistent buffer under each of its names."""
        for name, parameter in self._parameters.items():
            if parameter is not None:
                yield prefix + name, parameter
        for name, buffer in self._buffers.items():
            if buffer is not None and name not in self._non_persistent:
                yield prefix + name, buffer
        for name, module in self._modules.items():
            if module is not None:
                yield from module._state(f"{prefix}{name}.")

    def state_dict(self) -> dict[str, tg.Tensor]:
        """Name -> detached Tensor, on the same memory, of each parameter and persistent buffer; ties under each."""
        return {name: tensor.detach() for name, tensor in self._state()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> None:
        """Copy values into the parameters and buffers, in place: ties hold, and so do an optimizer's references.

        Everything is checked before anything is written. Of a tied parameter's names one is enough.

        Args:
            state_dict: name -> Tensor or ndarray, cast to the parameter's dtype.
            strict: whether missing and unexpected names are errors (default True); shapes always have to fit.

        Raises:
            RuntimeError: with every name that is missing, unexpected, of another shape or kind, or tied here but given
                two different values.
        """
        own = dict(self._state())
        given: dict[str, Any] = {}
        problems: list[str] = []
        for name, value in state_dict.items():
            if name in own:
                given[name] = value._data if isinstance(value, tg.Tensor) else np.asarray(value)
            elif strict:
                problems.append(f"unexpected: {name}")
        reached: dict[int, str] = {}
        for name, array in given.items():
            target = own[name]._data
            if array.shape != target.shape:
                problems.append(f"{name}: expected shape {target.shape}, got {array.shape}")
            elif array.dtype.kind != target.dtype.kind and not (array.dtype.kind in "iu" and target.dtype.kind in "iu"):
                problems.append(f"{name}: expected dtype {target.dtype}, got {array.dtype}")
            else:
                first = reached.setdefault(id(own[name]), name)
                if first != name and not np.array_equal(given[first], array, equal_nan=target.dtype.kind == "f"):
                    problems.append(f"{name}: is tied to {first}, but the two are given different values")
        if strict:
            named = {id(own[name]) for name in given}
            problems += [f"missing: {name}" for name, tensor in own.items() if id(tensor) not in named]
        if problems:
            raise RuntimeError(f"load_state_dict into {type(self).__name__}:\n  " + "\n  ".join(problems))
        targets = {id(own[name]): (own[name], given[name]) for name in given}
        arrays = [target._data for target, _ in targets.values()]
        # a value that lies in this module's own memory would change under the writing
        sources = [(t, a.copy() if any(np.may_share_memory(a, b) for b in arrays) else a) for t, a in targets.values()]
        for tensor, values in sources:
            if tensor._data.flags.writeable:
                np.copyto(tensor._data, values, casting="same_kind")
                tensor._bump()
            else:
                _set_data(tensor, np.array(values, dtype=tensor._data.dtype))

    # -- changing ------------------------------------------------------------------------------------------------------

    def train(self: M, mode: bool = True) -> M:
        """Set training mode (dropout drops, batch norm uses the batch) here and below."""
        for module in self.modules():
            object.__setattr__(module, "training", bool(mode))
        return self

    def eval(self: M) -> M:
        """Set evaluation mode here and below."""
        return self.train(False)

    def apply(self: M, function: Callable[[Module], None]) -> M:
        """Call `function` on every module, the inner ones first."""
        for module in reversed(list(self.modules())):
            function(module)
        return self

    def zero_grad(self) -> None:
        """Set every parameter's gradient to None."""
        not_captured(f"{type(self).__name__}.zero_grad")
        for parameter in self.parameters():
            parameter.grad = None

    def requires_grad_(self: M, requires_grad: bool = True) -> M:
        """Set whether the parameters are trained."""
        for parameter in self.parameters():
            parameter._requires_grad = bool(requires_grad)
        return self

    def to(self: M, dtype: Any) -> M:
        """Convert floating-point parameters, gradients and buffers; each stays the same object, so ties hold."""
        wanted = np.dtype(dtype)
        if wanted not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise TypeError(f"{type(self).__name__}.to: expected float32 or float64, got {wanted}")
        for tensor in [*self.parameters(), *self.buffers()]:
            for t in (tensor, tensor.grad):
                if t is not None and t._data.dtype.kind == "f" and t._data.dtype != wanted:
                    _set_data(t, t._data.astype(wanted))
        return self

    def double(self: M) -> M:
        """Convert to float64."""
        return self.to(np.float64)

    def float(self: M) -> M:
        """Convert to float32."""
        return self.to(np.float32)

    # -- reading -------------------------------------------------------------------------------------------------------

    def extra_repr(self) -> str:
        """What a subclass wants to be seen of itself in the tree, such as its sizes."""
        return ""

    def __repr__(self) -> str:
        rows = list(self._tree("", "", "", {}, {}))
        width = max(len(row[0]) for row in rows)
        return "\n".join(f"{text:<{width}}  {count}".rstrip() for text, count in rows)

    def _tree(
        self, label: str, path: str, indent: str, tensors: dict[int, str], modules: dict[int, str]
    ) -> Iterator[tuple[str, str]]:
        """Rows of (text, number of parameters) for this module and what is below it."""
        title = f"{label}{type(self).__name__}({self.extra_repr()})"
        if id(self) in modules:
            yield f"{title} = {modules[id(self)] or 'the root'}", ""
            return
        modules[id(self)] = path
        count = sum(p._data.size for p in self.parameters() if id(p) not in tensors)
        yield title, f"{count:,}" if count else ""
        rows: list[tuple[str, Any]] = [(n, p) for n, p in self._parameters.items() if p is not None]
        rows += [(n, b) for n, b in self._buffers.items() if b is not None]
        rows += [(n, m) for n, m in self._modules.items() if m is not None]
        for i, (name, value) in enumerate(rows):
            last = i == len(rows) - 1
            branch, below = indent + ("└─ " if last else "├─ "), indent + ("   " if last else "│  ")
            full = f"{path}.{name}" if path else name
            if isinstance(value, Module):
                first, *rest = value._tree(f"{name}: ", full, below, tensors, modules)
                yield branch + first[0], first[1]
                yield from rest
            elif id(value) in tensors:
                yield f"{branch}{name} {value.shape} = {tensors[id(value)]} (tied)", ""
            else:
                tensors[id(value)] = full
                is_parameter = isinstance(value, Parameter)
                note = "" if is_parameter and value.requires_grad else " frozen" if is_parameter else " buffer"
                yield f"{branch}{name} {value.shape}{note}", f"{value._data.size:,}" if is_parameter else ""


def _make_quick(kind: type, table: str, name: str) -> None:
    """Give the class an `_Entry` unless it has something of this name already."""
    if name.isidentifier() and not any([name in c.__dict__ for c in kind.__mro__]):
        setattr(kind, name, _Entry(table, name))


@contextlib.contextmanager
def eval_mode(module: Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards every module is as it was, also after an exception.

    >>> from tinygrad_tf import nn
    >>> layer = nn.Dropout(0.5)
    >>> with nn.eval_mode(layer):
    ...     layer.training
    False
    >>> layer.training
    True
    """
    in_training = [m for m in module.modules() if m.training]
    for m in in_training:
        object.__setattr__(m, "training", False)
    try:
        yield
    finally:
        for m in in_training:
            object.__setattr__(m, "training", True)
