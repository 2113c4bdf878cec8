"""Calibrator files: JSON, and for networks safetensors beside it; reading a file runs no code from it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from densecal.errors import InputError
from densecal.io.atomic import STDOUT, write_atomically, write_text
from densecal.io.documents import parse_json, read_bytes, read_text
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
    if weights and path == STDOUT:
        raise InputError(path, f"the two files of {calibrator.method}", "the name of a file")
    if weights:
        tensors = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
        content = _safetensors().save(tensors, {"densecal": "calibrator"})
        _, weights_path = calibrator_files(path)
        write_atomically(weights_path, lambda stream: stream.write(content))
        data |= {"weights": weights_path.name, "sha256": hashlib.sha256(content).hexdigest()}
    # JSON writes floats with all their digits, so what is loaded equals what was saved.
    write_text(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def calibrator_files(path: Path) -> tuple[Path, Path]:
    """Return the files that `save` writes: the calibrator and, for a network, its weights."""
    return path, path.with_suffix(_SUFFIX)


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
    data = parse_json(read_text(path, "a calibrator file", MAX_BYTES), path, "a calibrator file")
    if not isinstance(data, dict):
        raise InputError(path, f"JSON of type {type(data).__name__}", "a calibrator file: one object")
    return data


def _load_weights(calibrator: Calibrator, expected: dict[str, Any], path: Path, data: dict[str, Any]) -> None:
    name, digest = data.get("weights"), data.get("sha256")
    if not isinstance(name, str) or not name.endswith(_SUFFIX) or Path(name).name != name or "\\" in name:
        raise InputError(path, f"weights {str(name)[:100]!r}", f"the name of a {_SUFFIX} file beside it, no path")
    weights_path = path.with_name(name)
    content = read_bytes(weights_path, "the weights of a calibrator", MAX_BYTES)
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
    calibrator.load_extra_state({key: tensors[key] for key in expected})


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError:
        raise InputError("safetensors", "not installed", "pip install 'densecal[torch]' for this calibrator") from None
    return safetensors.torch
