"""Checkpoints that survive a kill at any moment: folders with hashes, put in place by renames, checked when read.

A checkpoint folder holds `model.safetensors`, `method.safetensors`, `optimizer.pt` and, written last, `meta.json`
with the SHA-256 of the others. Reading one executes nothing: safetensors, JSON, and plain containers of tensors.

The folder `checkpoints` of a run holds `last`, `previous` and `best`. For every reader the newest checkpoint is `last`
or, where a kill left no `last`, `previous`. A save writes `last.draft` and `best.new`, and is complete with the rename
that makes the draft `last`. What a kill leaves behind is completed or removed when training starts again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save_file
from torch import Tensor

from densecal.errors import InputError
from densecal.io.documents import read_json
from densecal.io.exchange import exchange
from densecal.io.run_files import NEWEST_CHECKPOINTS
from densecal.io.torch_files import read_torch_file

MODEL, METHOD, OPTIMIZER, META = "model.safetensors", "method.safetensors", "optimizer.pt", "meta.json"
CALIBRATOR = "calibrator.json"
"""Name of the run's own calibrator, in the run folder."""
VERSION = 1
WORST_BRIER = 2.0
"""That of several classes. Before the first validation the best score is infinite."""
_FILES = (MODEL, METHOD, OPTIMIZER, META)
_NEWEST = NEWEST_CHECKPOINTS
_BEST = ("best", "best.new", "best.old")
_LEFTOVERS = ("last.draft", "last.new", "last.new.old", "last.old", "previous.old", "best.new", "best.old")


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint folder.

    Attributes:
        model: Weights to use for prediction.
        method: State of the training method.
        optimizer: State of the optimizers. If the model is an average of weights, also the weights in training.
        meta: ``epoch`` (finished epochs), ``config``, ``best``.
        folder: The folder it was read from.
    """

    model: dict[str, Tensor]
    method: dict[str, Tensor]
    optimizer: dict[str, Any]
    meta: dict[str, Any]
    folder: Path


def save(
    folder: Path,
    model: dict[str, Tensor],
    method: dict[str, Tensor],
    optimizer: dict[str, Any],
    meta: dict[str, Any],
    best: Path | None = None,
) -> None:
    """Write a checkpoint folder. The one it replaces becomes ``previous`` beside it.

    Args:
        folder: Folder to write, such as ``checkpoints/last``.
        model: Weights to use for prediction.
        method: State of the training method.
        optimizer: State of the optimizers.
        meta: ``epoch``, ``best`` and ``config``.
        best: A folder that gets the same content. It is written first: after a kill in between, the epoch is repeated
            and this folder written again.

    Raises:
        InputError: The checkpoint could not be written. What was there before is unchanged.
    """
    draft = folder.with_name(f"{folder.name}.draft")
    recover(folder.parent)
    try:
        draft.mkdir(parents=True)
        _write(draft, model, method, optimizer, meta)
        if best is not None:
            _copy(draft, best)
        previous = folder.with_name("previous")
        if folder.exists():
            _remove(previous)
        _put(draft, folder, previous)  # from here on this checkpoint is the newest
        _sync_folder(folder.parent)
    except (OSError, RuntimeError, SafetensorError) as error:
        for leftover in (draft, folder.with_name("best.new")):
            _delete(leftover)
        reason = " ".join(str(error).split())
        raise InputError(
            folder,
            f"the checkpoint could not be written ({reason})",
            "free disk space; --resume continues from the last checkpoint",
        ) from None


def _write(
    draft: Path,
    model: dict[str, Tensor],
    method: dict[str, Tensor],
    optimizer: dict[str, Any],
    meta: dict[str, Any],
) -> None:
    save_file(_prepare_tensors(model), draft / MODEL)
    save_file(_prepare_tensors(method), draft / METHOD)
    torch.save(optimizer, draft / OPTIMIZER)
    hashes = {name: _sha256(draft / name) for name in (MODEL, METHOD, OPTIMIZER)}
    meta_text = json.dumps({"version": VERSION, **meta, "sha256": hashes}, indent=1)
    (draft / META).write_text(meta_text, encoding="utf-8")
    for name in _FILES:
        with (draft / name).open("rb") as stream:
            os.fsync(stream.fileno())
    _sync_folder(draft)


def _copy(source: Path, target: Path) -> None:
    """Replace a checkpoint folder with a copy of another, made of hard links where the file system has them."""
    new, old = (target.with_name(f"{target.name}.{kind}") for kind in ("new", "old"))
    new.mkdir()
    for name in _FILES:
        try:
            os.link(source / name, new / name)
        except OSError:
            shutil.copy2(source / name, new / name)
    _put(new, target, old)
    _delete(old)


def _put(new: Path, target: Path, old: Path) -> None:
    """Rename a folder to ``target``, which becomes ``old`` if it exists.

    Where the system can exchange two names, ``target`` exists at every moment.
    """
    if not target.exists():
        os.rename(new, target)
    elif exchange(new, target):
        os.rename(new, old)
    else:
        os.rename(target, old)
        os.rename(new, target)


def _remove(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that no reader sees half of it."""
    if folder.exists():
        old = folder.with_name(f"{folder.name}.old")
        _delete(old)
        os.rename(folder, old)
        _delete(old)


def _delete(path: Path) -> None:
    """Delete a folder, or a link to one, as far as possible: some systems cannot delete files being read."""
    if path.is_symlink():
        path.unlink()
    shutil.rmtree(path, ignore_errors=True)


def recover(folder: Path) -> None:
    """Complete or remove what a kill left in a ``checkpoints`` folder. Only the process that trains may call this.

    It may itself be killed at any moment.

    Raises:
        InputError: Something other than a folder has the name of a checkpoint, or nothing in the folder can be renamed.
    """
    for path in (folder, *(folder / name for name in ("last", "previous", "best"))):
        if os.path.lexists(path) and not path.is_dir():
            raise InputError(
                path, "not a folder", "a folder of checkpoints" if path == folder else "a checkpoint folder"
            )
    try:
        _recover(folder, *(folder / name for name in ("last", "previous", "best")))
    except OSError as error:
        raise InputError(folder, f"cannot be written ({error.strerror})", "a folder that can be written to") from None


def _recover(folder: Path, last: Path, previous: Path, best: Path) -> None:
    newest, best_copy = _first_complete(folder, _NEWEST), _first_complete(folder, _BEST)
    if newest is not None and newest.name == "last.new":
        if last.exists():
            _remove(previous)
            os.rename(last, previous)  # not an exchange, after which `last.new` would be the older one
        os.rename(newest, last)
    elif not last.exists() and previous.exists():
        os.rename(previous, last)
    if best_copy is not None and not best.exists():
        os.rename(best_copy, best)
    for name in _LEFTOVERS:
        _delete(folder / name)


def load(folder: Path) -> Checkpoint:
    """Read and check a checkpoint folder.

    Raises:
        InputError: A file is missing, cut short or changed.
    """
    meta, hashes = _read_meta(folder)
    for name, expected in hashes.items():
        _check_hash(folder / name, expected)
    try:
        optimizer = read_torch_file(folder / OPTIMIZER)
        model, method = _read_tensors(folder / MODEL), _read_tensors(folder / METHOD)
    except Exception as error:
        raise _unreadable(folder, error) from None
    if not isinstance(optimizer, dict):
        raise InputError(folder / OPTIMIZER, f"a {type(optimizer).__name__}", "the state of the optimizers")
    return Checkpoint(model, method, optimizer, meta, folder)


def load_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read and check the weights and the meta of a checkpoint folder, without the state of its training.

    Raises:
        InputError: One of both files is missing, cut short or changed.
    """
    meta, hashes = _read_meta(folder)
    _check_hash(folder / MODEL, hashes[MODEL])
    try:
        return _read_tensors(folder / MODEL), meta
    except Exception as error:
        raise _unreadable(folder, error) from None


def _read_meta(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read and check `meta.json`; return it and the SHA-256 of the other files."""
    try:
        meta = read_json(folder / META, "a complete checkpoint")
        hashes = {name: meta["sha256"][name] for name in (MODEL, METHOD, OPTIMIZER)}
        epoch, best = meta["epoch"], meta["best"]
    except (KeyError, TypeError) as error:
        raise InputError(folder / META, f"unreadable ({error})", "a complete checkpoint") from None
    is_score = type(best) in (int, float) and (0 <= best <= WORST_BRIER or best == math.inf)
    if type(epoch) is not int or epoch < 0 or not is_score:
        raise InputError(folder / META, f"epoch {epoch!r} and best {best!r}", "a number of epochs and a Brier score")
    threads = meta.get("threads", 1)  # those of version 0.1 have none
    if type(threads) is not int or threads < 1:
        raise InputError(folder / META, f"threads {threads!r}", "a number of threads")
    origin = meta.get("first_stage")
    if origin is not None and not (isinstance(origin, dict) and {"run", "weights"} <= origin.keys()):
        raise InputError(folder / META, "a damaged first_stage", "the run that the second stage started from")
    if meta.get("version") != VERSION:
        raise InputError(folder / META, f"format version {meta.get('version')}", f"version {VERSION}")
    return meta, hashes


def _check_hash(path: Path, expected: Any) -> None:
    """Raise an InputError unless a file of a checkpoint folder has the SHA-256 it was written with."""
    if not path.is_file():
        raise InputError(path, "no such file", "a complete checkpoint")
    if _sha256(path) != expected:
        raise InputError(path, "cut short or changed since it was written", "the content whose hash is in meta.json")


def _read_tensors(path: Path) -> dict[str, Tensor]:
    return load_tensors(path.read_bytes())  # not load_file, which refuses folders whose names are not UTF-8


def _unreadable(folder: Path, error: Exception) -> InputError:
    return InputError(folder, f"unreadable ({' '.join(str(error).split())[:200]})", "a checkpoint")


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest sound checkpoint of a ``checkpoints`` folder, and what is wrong with newer ones."""
    problems: list[str] = []
    for name in _NEWEST:
        if not (folder / name).exists():
            continue
        try:
            return load(folder / name), problems
        except InputError as error:
            # a write cut short by a kill does no harm: the checkpoint before it is complete
            if name != "last.new":
                problems.append(str(error))
    return None, problems


def find(run_or_checkpoint: Path) -> Path:
    """Return the newest checkpoint folder of a run folder, or a checkpoint folder itself.

    ``last`` and ``best`` are found too where a kill has left them under another name.
    """
    path = run_or_checkpoint
    names: tuple[str, ...] = (path.name,)
    if path.name == "last":
        names = _NEWEST[:2]
    elif path.name == "best" and not path.exists():
        names = _BEST
    folder = _first_complete(path.parent, names) or _first_complete(path / "checkpoints", _NEWEST)
    if folder is None:
        problem = "no checkpoint" if path.is_dir() else "no such folder"
        raise InputError(path, problem, "a run folder or a folder with model.safetensors and meta.json")
    return folder


def _first_complete(folder: Path, names: Iterable[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name / META).is_file()), None)


def _prepare_tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as safetensors needs them: on the CPU, contiguous, with no memory in common."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make sure that renames in a folder survive a power cut, on systems where folders can be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
