"""Modules that hold modules: Sequential, ModuleList."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from .module import Module


class _Numbered(Module):
    """Modules under the names "0", "1", ..."""

    def append(self, module: Module) -> _Numbered:
        """Add a module at the end."""
        self.register_module(str(len(self._modules)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> _Numbered:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._modules.values()))

    def __getitem__(self, index: int | slice) -> Any:
        modules = list(self._modules.values())
        if isinstance(index, slice):
            part = type(self).__new__(type(self))
            Module.__init__(part)
            return part.extend(m for m in modules[index] if m is not None)
        if not -len(modules) <= index < len(modules):
            raise IndexError(f"{type(self).__name__}: index {index} of {len(modules)} modules")
        return modules[index]

    def __setitem__(self, index: int, module: Module) -> None:
        if not -len(self) <= index < len(self):
            raise IndexError(f"{type(self).__name__}: index {index} of {len(self)} modules")
        self.register_module(str(index % len(self)), module)


class Sequential(_Numbered):
    """y = f_n(... f_2(f_1(x))).

    >>> import tinygrad_tf as tg
    >>> from tinygrad_tf import nn
    >>> nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))(tg.ones(4, 2)).shape
    (4, 1)
    """

    def __init__(self, *modules: Module):
        super().__init__()
        self.extend(modules)

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


class ModuleList(_Numbered):
    """A list of modules that are found as attributes are; it has no forward of its own.

    >>> from tinygrad_tf import nn
    >>> layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    >>> len(layers), layers.num_parameters()
    (3, 18)
    """

    def __init__(self, modules: Iterable[Module] = ()):
        super().__init__()
        self.extend(modules)
