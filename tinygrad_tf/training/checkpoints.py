"""Checkpoints on disk: a new one is whole or is not there, and a damaged one says so.

    ckpt/000500/model.safetensors       parameters and buffers; tied weights once
                optimizer.safetensors   the moments, by the names of the parameters
                state.json              everything else, and the SHA-256 of the two files
    ckpt/latest                         the name of the newest whole checkpoint

A checkpoint is written into a hidden folder beside its place, forced to the disk, and renamed; then `latest`
is replaced. Whenever the process dies, `latest` names a whole checkpoint, all of one step.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
PathLike = str | os.PathLike[str]

MODEL, OPTIMIZER, STATE, LATEST = "model.safetensors", "optimizer.safetensors", "state.json", "latest"


class CheckpointError(RuntimeError):
    """A checkpoint is missing or damaged; the message is one line that names the file."""


def _safetensors() -> Any:
    try:
        import safetensors.numpy
    except ImportError:
        raise ImportError("checkpoints need safetensors: pip install 'tinygrad_tf[train]'") from None
    return safetensors.numpy


def unique_tensors(model: Any) -> dict[str, Array]:
    """The arrays of `model.state_dict()`, those that share memory (tied weights) only under their first name."""
    seen: set[tuple[Any, ...]] = set()
    arrays: dict[str, Array] = {}
    for name, tensor in model.state_dict().items():
        array: Array = tensor._data
        place = (array.__array_interface__["data"][0], array.shape, array.strides)
        if array.size == 0 or place not in seen:
            seen.add(place)
            arrays[name] = array
    return arrays


def sync_folder(folder: Path) -> None:
    """Force a folder's entries to the disk, where the system can."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file so that at any moment it is the old one or the new one."""
    beside = path.with_name(f".{path.name}.tmp")
    _write(beside, data)
    os.replace(beside, path)
    sync_folder(path.parent)


def _write(path: Path, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def checkpoint_folder(run: PathLike, step: int) -> Path:
    """Where the checkpoint of a step lies.

    Example:
        >>> checkpoint_folder("runs/a", 500).as_posix()
        'runs/a/ckpt/000500'
    """
    return Path(run) / "ckpt" / f"{step:06d}"


def save_checkpoint(
    run: PathLike, step: int, model: Mapping[str, Array], optimizer: Mapping[str, Array], state: Mapping[str, Any],
    keep: int = 3,
) -> Path:  # fmt: skip
    """Write the checkpoint of a step, make it the latest, and delete all but the newest `keep`.

    Arguments:
        run: the run folder.
        step: how many steps were taken.
        model, optimizer: name -> array.
        state: what JSON can hold.
        keep: how many checkpoints stay (default 3); at least 1.

    Raises OSError where it cannot be written; the checkpoints before it then stay as they were.
    """
    to_bytes = _safetensors().save
    place = checkpoint_folder(run, step)
    root = place.parent
    root.mkdir(parents=True, exist_ok=True)
    clean(run)
    beside = root / f".tmp-{place.name}-{os.getpid()}"
    beside.mkdir()
    try:
        hashes = {}
        for name, arrays in ((MODEL, model), (OPTIMIZER, optimizer)):
            data = to_bytes({k: np.ascontiguousarray(a) for k, a in arrays.items()})
            hashes[name] = hashlib.sha256(data).hexdigest()
            _write(beside / name, data)
        _write(beside / STATE, (json.dumps({"step": step, "sha256": hashes, **state}) + "\n").encode())
        sync_folder(beside)
        if place.exists():  # a checkpoint that was renamed, but the process died before it became the latest
            place.rename(root / f".old-{place.name}-{os.getpid()}")
        beside.rename(place)
        sync_folder(root)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    write_whole(root / LATEST, f"{place.name}\n".encode())
    names = sorted((p for p in root.iterdir() if p.name.isdigit() and p != place), key=lambda p: int(p.name))
    newer = [p for p in names if int(p.name) > step]  # of a run that was resumed from an older checkpoint
    older = [p for p in names if int(p.name) < step]
    for old in newer + older[: max(0, len(older) - max(keep, 1) + 1)]:
        old.rename(root / f".old-{old.name}-{os.getpid()}")
    clean(run)
    return place


def clean(run: PathLike) -> None:
    """Delete what a process that died in the middle of a save has left in the run folder."""
    root = Path(run) / "ckpt"
    if root.is_dir():
        for path in root.iterdir():
            if path.name.startswith((".tmp-", ".old-")):
                shutil.rmtree(path, ignore_errors=True)


def latest_checkpoint(run: PathLike) -> Path:
    """The folder that `latest` names. Raises CheckpointError where there is none."""
    pointer = Path(run) / "ckpt" / LATEST
    try:
        name = pointer.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise CheckpointError(f"{run}: there is no checkpoint in it ({pointer} is missing)") from None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{pointer}: it cannot be read ({error})") from None
    if not name.isdigit():
        raise CheckpointError(f"{pointer}: is damaged; it must hold the name of a checkpoint, such as 000500")
    if not (pointer.parent / name).is_dir():
        raise CheckpointError(f"{pointer.parent / name}: the checkpoint that {pointer} names is missing")
    return pointer.parent / name


def load_checkpoint(folder: PathLike) -> tuple[dict[str, Array], dict[str, Array], dict[str, Any]]:
    """The model's arrays, the optimizer's arrays and the state of a checkpoint.

    Raises CheckpointError, naming the file, where one is missing or is not what was written.
    """
    state = _load_state(Path(folder))
    return _load_arrays(Path(folder), MODEL, state), _load_arrays(Path(folder), OPTIMIZER, state), state


def load_model(model: Any, run: PathLike) -> int:
    """Read the weights of a run's latest checkpoint into a model; return the checkpoint's step.

    Raises CheckpointError where the checkpoint is missing, damaged or of another model.
    """
    folder = latest_checkpoint(run)
    state = _load_state(folder)
    restore_model(model, _load_arrays(folder, MODEL, state), folder)
    return int(state["step"])


def restore_model(model: Any, arrays: Mapping[str, Array], folder: Path) -> None:
    """Read arrays into a model; ties hold. Raises CheckpointError where they are of another model."""
    try:
        model.load_state_dict(arrays)
    except (RuntimeError, KeyError, ValueError) as error:
        text = " ".join(str(error).split())
        raise CheckpointError(f"{folder / MODEL}: is of another model: {text[:300]}") from None


def _load_state(folder: Path) -> dict[str, Any]:
    path = folder / STATE
    try:
        state: dict[str, Any] = json.loads(path.read_bytes())
        if not isinstance(state["step"], int) or {MODEL, OPTIMIZER} - set(state["sha256"]):
            raise ValueError("entries are missing")
    except FileNotFoundError:
        raise CheckpointError(f"{path}: the file is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path}: it cannot be read ({error.strerror or error})") from None
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: the file is damaged ({error})") from None
    return state


def _load_arrays(folder: Path, name: str, state: Mapping[str, Any]) -> dict[str, Array]:
    path = folder / name
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{path}: the file is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path}: it cannot be read ({error.strerror or error})") from None
    if hashlib.sha256(data).hexdigest() != state["sha256"][name]:
        raise CheckpointError(f"{path}: the file is damaged (its SHA-256 is not the one in {folder / STATE})")
    arrays: dict[str, Array] = _safetensors().load(data)
    return arrays
