"""What all optimizers share: groups of parameters with settings, and a state that a checkpoint can hold."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygrad_tf.modes import _profile, not_captured
from tinygrad_tf.tensor import Tensor

Array = NDArray[Any]


class Optimizer:
    """Parameters in groups, each with its own settings; subclasses define `_update`.

    Arguments:
        params: Tensors, (name, Tensor) pairs as `named_parameters()` gives, or groups: dicts with "params" and any
            settings that differ from the defaults.
        defaults: the settings of groups that do not name them.

    A parameter whose gradient is None is left as it is, without decay and without a change to its state.

    Raises:
        ValueError: no parameters, a parameter given twice, a setting that does not exist or is out of range.
        TypeError: something that is no Tensor, or no floating-point leaf.
    """

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        self.defaults = dict(defaults)
        self.param_groups: list[dict[str, Any]] = []
        self.state: dict[int, dict[str, Any]] = {}  # by the position of the parameter among all
        self._order: list[Tensor] = []
        self._names: list[str | None] = []
        if isinstance(params, Tensor):
            raise TypeError(f"{self._kind}: params must be a list of Tensors, got a single Tensor")
        given = list(params)
        if not given:
            raise ValueError(f"{self._kind}: params is empty; there is nothing to train")
        for group in given if isinstance(given[0], Mapping) else [{"params": given}]:
            self.add_param_group(group)

    @property
    def _kind(self) -> str:
        return type(self).__name__

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add a group: a dict with "params" and the settings that differ from the defaults."""
        if not isinstance(group, Mapping) or "params" not in group:
            raise TypeError(f"{self._kind}: a group must be a dict with 'params', got {type(group).__name__}")
        unknown = set(group) - set(self.defaults) - {"params", "name"}
        if unknown:
            raise ValueError(f"{self._kind}: unknown settings in a group: {', '.join(sorted(unknown))}")
        entries = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        known = {id(p) for p in self._order}
        tensors: list[Tensor] = []
        names: list[str | None] = []
        for entry in entries:
            name, p = entry if isinstance(entry, tuple) else (None, entry)
            if not isinstance(p, Tensor):
                raise TypeError(f"{self._kind}: params must be Tensors, got {type(p).__name__}")
            if p._data.dtype.kind != "f" or p._node is not None:
                raise TypeError(
                    f"{self._kind}: params must be floating-point leaves, got {p._data.dtype} of shape {p.shape}"
                    + ("" if p._node is None else ", the result of an operation")
                )
            if id(p) in known:
                raise ValueError(
                    f"{self._kind}: a parameter of shape {p.shape} was given twice"
                    f"{'' if name is None else f' (here as {name})'}; each belongs to exactly one group"
                )
            known.add(id(p))
            tensors.append(p)
            names.append(name)
        settings = {key: group.get(key, default) for key, default in self.defaults.items()}
        self._check(settings)
        self.param_groups.append({"params": tensors, **settings})
        self._order += tensors
        self._names += names

    def _check(self, settings: Mapping[str, Any]) -> None:
        """Raise ValueError for settings out of range."""
        for key in ("lr", "weight_decay", "eps"):
            if key in settings and not settings[key] >= 0:
                raise ValueError(f"{self._kind}: {key} must be at least 0, got {settings[key]}")
        for beta in settings.get("betas", ()):
            if not 0 <= beta < 1:
                raise ValueError(f"{self._kind}: betas must be at least 0 and below 1, got {settings['betas']}")

    def zero_grad(self) -> None:
        """Set every gradient to None."""
        not_captured(f"{self._kind}.zero_grad")
        for p in self._order:
            p.grad = None

    def step(self) -> None:
        """Change every parameter that has a gradient, in place."""
        not_captured(f"{self._kind}.step")
        start = time.perf_counter()
        position = 0
        for group in self.param_groups:
            chosen = []
            for p in group["params"]:
                if p.grad is not None:
                    self._check_gradient(p)
                    chosen.append((position, p))
                position += 1
            self._update(group, chosen)
            for _, p in chosen:
                p._bump()
        profile = _profile.get()
        if profile is not None:
            profile.other(f"{self._kind}.step", time.perf_counter() - start)

    def _check_gradient(self, p: Tensor) -> None:
        gradient = p.grad
        if not isinstance(gradient, Tensor) or gradient._data.shape != p._data.shape:
            raise ValueError(
                f"{self._kind}: the gradient of a parameter of shape {p.shape} must be a Tensor of that shape, "
                f"got {getattr(gradient, 'shape', type(gradient).__name__)}"
            )

    def _update(self, group: dict[str, Any], chosen: list[tuple[int, Tensor]]) -> None:
        """Change the chosen parameters (position, parameter) of one group."""
        raise NotImplementedError(f"{self._kind} must define _update")

    def _moments(self, position: int, p: Tensor, names: tuple[str, ...]) -> dict[str, Any]:
        """The state of one parameter: a step count, and arrays of zeros at first."""
        if position not in self.state:
            self.state[position] = {"step": 0, **{n: np.zeros(p.shape, p._data.dtype) for n in names}}
        return self.state[position]

    def state_dict(self) -> dict[str, Any]:
        """Settings, and a copy of the state of every parameter, by its position among all parameters.

        "state" maps positions to {"step": int, name of the moment: ndarray}; "param_groups" holds the settings, and
        positions in place of parameters; "shapes" and "names" are there to be checked.
        """
        position = 0
        groups = []
        for group in self.param_groups:
            count = len(group["params"])
            groups.append({**group, "params": list(range(position, position + count))})
            position += count
        return {
            "kind": self._kind,
            "state": {
                i: {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in s.items()}
                for i, s in self.state.items()
            },
            "param_groups": groups,
            "shapes": [list(p.shape) for p in self._order],
            "names": list(self._names),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over settings and state: the next step is the one that would have come.

        The saved settings win over those of the constructor; set `param_groups[i]["lr"]` afterwards to change one. A
        parameter that the saved optimizer had not stepped yet starts from nothing, as it would have there.

        Raises ValueError, and changes nothing, unless the parameters are the same in number, order, shape and, where
        both know them, name.
        """
        if state.get("kind") != self._kind:
            raise ValueError(f"{self._kind}: the saved state is of {state.get('kind')}")
        sizes = [len(g["params"]) for g in state["param_groups"]]
        mine = [len(g["params"]) for g in self.param_groups]
        if sizes != mine:
            raise ValueError(f"{self._kind}: the saved groups have {sizes} parameters, these have {mine}")
        for i, (p, shape) in enumerate(zip(self._order, state["shapes"], strict=True)):
            if tuple(shape) != p.shape:
                raise ValueError(f"{self._kind}: parameter {i} has shape {p.shape}, the saved one {tuple(shape)}")
        for name, saved in zip(self._names, state["names"], strict=True):
            if name is not None and saved is not None and name != saved:
                raise ValueError(f"{self._kind}: parameter {name} stands where the saved state has {saved}")
        loaded: dict[int, dict[str, Any]] = {}
        for key, entries in state["state"].items():
            p = self._order[int(key)]
            entry: dict[str, Any] = {}
            loaded[int(key)] = entry
            for name, value in entries.items():
                if isinstance(value, (int, np.integer)):
                    entry[name] = int(value)
                    continue
                array = np.array(value._data if isinstance(value, Tensor) else value, dtype=p._data.dtype, order="C")
                if array.shape != p.shape:
                    raise ValueError(
                        f"{self._kind}: {name} of parameter {key} must have shape {p.shape}, got {array.shape}"
                    )
                entry[name] = array
        for group, saved_group in zip(self.param_groups, state["param_groups"], strict=True):
            for setting in self.defaults:
                if setting in saved_group:
                    value = saved_group[setting]
                    group[setting] = tuple(value) if isinstance(value, list) else value
        self.state = loaded

    def __repr__(self) -> str:
        rows = []
        for group in self.param_groups:
            settings = ", ".join(f"{k}={v}" for k, v in group.items() if k != "params")
            rows.append(f"  {len(group['params'])} parameters: {settings}")
        return f"{self._kind}(\n" + "\n".join(rows) + "\n)"
