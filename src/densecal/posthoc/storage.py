"""Calibrator files: JSON, and for networks safetensors beside it; reading a file runs no code from it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from torch import Tensor

from densecal.errors import InputError
from densecal.io.atomic import write_atomically, write_text
from densecal.posthoc.base import VERSION, Calibrator
from densecal.posthoc.registry import find

MAX_BYTES = 1 << 26
"""Larger files are refused."""
_SUFFIX = ".safetensors"


def save(calibrator: Calibrator, path: str | Path) -> None:
    """Write a calibrator atomically; the weights of a network go into a file of the same stem beside it."""
    path = Path(path)
    data = calibrator.to_json()
    weights = calibrator.extra_state()
    if weights:
        content = _safetensors().save({name: tensor.cpu().contiguous() for name, tensor in weights.items()})
        weights_path = path.with_suffix(_SUFFIX)
        write_atomically(weights_path, lambda stream: stream.write(content))
        data |= {"weights": weights_path.name, "sha256": hashlib.sha256(content).hexdigest()}
    # JSON writes floats with all their digits, so what is loaded equals what was saved.
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def load(path: str | Path) -> Calibrator:
    """Read a calibrator.

    Raises:
        InputError: The file is not what `save` writes.
    """
    path = Path(path)
    data = _decode(path)
    if data.get("densecal") != "calibrator":
        raise InputError(path, "JSON that is not a calibrator", '"densecal": "calibrator"')
    if data.get("version") != VERSION or isinstance(data["version"], bool):
        raise InputError(path, f"format version {str(data.get('version'))[:50]}", f"version {VERSION}")
    method = data.get("method")
    calibrator = find(method if isinstance(method, str) else str(method), f"{path}: method").from_json(data, str(path))
    expected = calibrator.extra_state()
    if expected:
        _load_weights(calibrator, expected, path, data)
    return calibrator


def _decode(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(_read(path).decode("utf-8"))
    except RecursionError:
        raise InputError(path, "JSON nested too deeply", "a calibrator file") from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(path, f"not JSON ({str(error)[:100]})", "a calibrator file") from None
    if not isinstance(data, dict):
        raise InputError(path, f"JSON of type {type(data).__name__}", "a calibrator file: one object")
    return data


def _load_weights(calibrator: Calibrator, expected: dict[str, Tensor], path: Path, data: dict[str, Any]) -> None:
    name, digest = data.get("weights"), data.get("sha256")
    if not isinstance(name, str) or not name.endswith(_SUFFIX) or Path(name).name != name or "\\" in name:
        raise InputError(path, f"weights {str(name)[:100]!r}", f"the name of a {_SUFFIX} file beside it, no path")
    weights_path = path.with_name(name)
    content = _read(weights_path)
    if hashlib.sha256(content).hexdigest() != digest:
        raise InputError(weights_path, "cut short or changed since it was written", f"the content hashed in {path}")
    try:
        tensors = _safetensors().load(content)
    except Exception as error:
        raise InputError(weights_path, f"unreadable ({' '.join(str(error).split())[:100]})", "safetensors") from None
    for key, tensor in expected.items():
        loaded = tensors.get(key)
        if loaded is None or loaded.shape != tensor.shape or loaded.dtype != tensor.dtype:
            raise InputError(weights_path, f"no tensor {key} of shape {tuple(tensor.shape)}", f"weights of {path}")
        if loaded.is_floating_point() and not bool(loaded.isfinite().all()):
            raise InputError(weights_path, f"NaN or infinite numbers in {key}", "finite weights")
    calibrator.load_state_dict({**calibrator.state_dict(), **{key: tensors[key] for key in expected}})


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(path, error.strerror or "unreadable", "a calibrator file") from None
    if len(content) > MAX_BYTES:
        raise InputError(path, f"more than {MAX_BYTES:,} bytes", "a calibrator file")
    return content


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise InputError("safetensors", "not installed", "pip install 'densecal[train]' for this calibrator") from None
    return safetensors.torch
