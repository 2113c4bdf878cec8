"""Checkpoints that survive a kill at any moment: folders with hashes, put in place by renames, checked when read.

A checkpoint folder holds `model.safetensors`, `method.safetensors`, `optimizer.pt` and, written last, `meta.json`
with the SHA-256 of the others. Reading one executes nothing: safetensors, JSON, and `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from densecal.errors import InputError
from densecal.io.documents import read_json

MODEL, METHOD, OPTIMIZER, META = "model.safetensors", "method.safetensors", "optimizer.pt", "meta.json"
CALIBRATOR = "calibrator.json"
"""Name of the run's own calibrator, in the run folder."""
VERSION = 1
_FOLDERS = ("last", "last.new", "previous")


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint folder.

    Attributes:
        model: Weights to use for prediction.
        method: State of the training method.
        optimizer: State of the optimizers. If the model is an average of weights, also the weights in training.
        meta: ``epoch`` (finished epochs), ``config``, ``best``.
    """

    model: dict[str, Tensor]
    method: dict[str, Tensor]
    optimizer: dict[str, Any]
    meta: dict[str, Any]


def save(
    folder: Path,
    model: dict[str, Tensor],
    method: dict[str, Tensor],
    optimizer: dict[str, Any],
    meta: dict[str, Any],
    best: Path | None = None,
) -> None:
    """Write a checkpoint folder. The former one becomes ``previous`` beside it.

    Args:
        folder: The folder.
        model: Weights to use for prediction.
        method: State of the training method.
        optimizer: State of the optimizers.
        meta: ``epoch``, ``best`` and ``config``.
        best: A folder that gets the same content. It is written first: after a kill in between, the epoch is repeated
            and this folder written again.

    Raises:
        InputError: The checkpoint could not be written. What was there before is unchanged.
    """
    draft, new = (folder.with_name(f"{folder.name}.{kind}") for kind in ("draft", "new"))
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        save_file(_plain(model), draft / MODEL)
        save_file(_plain(method), draft / METHOD)
        torch.save(optimizer, draft / OPTIMIZER)
        hashes = {name: _sha256(draft / name) for name in (MODEL, METHOD, OPTIMIZER)}
        meta_text = json.dumps({"version": VERSION, **meta, "sha256": hashes}, indent=1)
        (draft / META).write_text(meta_text, encoding="utf-8")
        for name in (MODEL, METHOD, OPTIMIZER, META):
            with (draft / name).open("rb") as stream:
                os.fsync(stream.fileno())
    except (OSError, RuntimeError, SafetensorError) as error:
        shutil.rmtree(draft, ignore_errors=True)
        reason = " ".join(str(error).split())
        raise InputError(
            folder,
            f"the checkpoint could not be written ({reason})",
            "free disk space; --resume continues from the last checkpoint",
        ) from None
    if best is not None:
        _copy(draft, best)
    _replace(new, draft)  # from here on this checkpoint is the newest
    if folder.exists():
        _replace(folder.with_name("previous"), folder)
    os.rename(new, folder)


def _copy(source: Path, target: Path) -> None:
    """Replace a checkpoint folder by a copy of another, made of hard links where the file system has them."""
    new = target.with_name(f"{target.name}.new")
    try:
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        for name in (MODEL, METHOD, OPTIMIZER, META):
            try:
                os.link(source / name, new / name)
            except OSError:
                shutil.copy2(source / name, new / name)
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise InputError(target, f"the checkpoint could not be written ({error})", "free disk space") from None
    _replace(target, new)


def _replace(target: Path, new: Path) -> None:
    """Replace a folder by another. The old one is renamed before it is removed, so no reader sees half of it."""
    old = target.with_name(f"{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        os.rename(target, old)
    os.rename(new, target)
    shutil.rmtree(old, ignore_errors=True)


def load(folder: Path) -> Checkpoint:
    """Read and check a checkpoint folder.

    Raises:
        InputError: A file is missing, cut short or changed.
    """
    try:
        meta = read_json(folder / META, "a complete checkpoint")
        hashes = {name: meta["sha256"][name] for name in (MODEL, METHOD, OPTIMIZER)}
        epoch, best = meta["epoch"], meta["best"]
    except (KeyError, TypeError) as error:
        raise InputError(folder / META, f"unreadable ({error})", "a complete checkpoint") from None
    if not isinstance(epoch, int) or epoch < 0 or not isinstance(best, int | float):
        raise InputError(folder / META, f"epoch {epoch!r} and best {best!r}", "a number of epochs and a Brier score")
    if meta.get("version") != VERSION:
        raise InputError(folder / META, f"format version {meta.get('version')}", f"version {VERSION}")
    for name in (MODEL, METHOD, OPTIMIZER):
        path = folder / name
        if not path.is_file():
            raise InputError(path, "no such file", "a complete checkpoint")
        if _sha256(path) != hashes.get(name):
            raise InputError(
                path, "cut short or changed since it was written", "the content whose hash is in meta.json"
            )
    try:
        optimizer = torch.load(folder / OPTIMIZER, map_location="cpu", weights_only=True)
        model, method = load_file(folder / MODEL), load_file(folder / METHOD)
    except Exception as error:
        raise InputError(folder, f"unreadable ({' '.join(str(error).split())[:200]})", "a checkpoint") from None
    if not isinstance(optimizer, dict):
        raise InputError(folder / OPTIMIZER, f"a {type(optimizer).__name__}", "the state of the optimizers")
    return Checkpoint(model, method, optimizer, meta)


def load_newest(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest complete checkpoint of a ``checkpoints`` folder, and what is wrong with the others."""
    complete: list[Checkpoint] = []
    problems = []
    for name in _FOLDERS:
        if not (folder / name).exists():
            continue
        try:
            complete.append(load(folder / name))
        except InputError as error:
            # a write cut short by a kill does no harm: the checkpoint before it is complete
            if name != "last.new":
                problems.append(str(error))
    return max(complete, key=lambda checkpoint: int(checkpoint.meta["epoch"]), default=None), problems


def find(run_or_checkpoint: Path) -> Path:
    """Return a checkpoint folder itself, or the last checkpoint folder of a run folder."""
    if (run_or_checkpoint / META).is_file():
        return run_or_checkpoint
    for name in _FOLDERS:  # a kill between two renames leaves no folder "last"
        folder = run_or_checkpoint / "checkpoints" / name
        if (folder / META).is_file():
            return folder
    problem = "no checkpoint" if run_or_checkpoint.is_dir() else "no such folder"
    raise InputError(run_or_checkpoint, problem, "a run folder or a folder with model.safetensors and meta.json")


def _plain(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as safetensors needs them: on the CPU, contiguous, with no memory in common."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in state.items()}


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
