"""What layouts examine in the first file of a folder: names of arrays, shape, possible meaning of the values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from densecal.errors import InputError
from densecal.io import MAX_PIXELS, SUM_TOLERANCE
from densecal.io.archives import Archive
from densecal.io.folders import files_in
from densecal.io.map_options import MapOptions
from densecal.io.readers.protocol import LazyArray
from densecal.io.readers.registry import find_reader
from densecal.io.readers.stored import readable
from densecal.io.readers.tensors import tensors_of
from densecal.io.row_chunks import row_chunks
from densecal.io.suffixes import stem_of, suffix_of
from densecal.io.urls import is_folder, open_bytes

_MAX_HEADER = 1 << 24
_MAX_VALUES = 16 * MAX_PIXELS


def by_stem(folder: Path, suffixes: tuple[str, ...]) -> dict[str, Path]:
    """Return the files of a folder that have one of the suffixes, by stem; none where there is no folder."""
    return {stem_of(path): path for path in files_in(folder, suffixes)} if is_folder(folder) else {}


def array_names(path: Path) -> list[str]:
    """List the names of the arrays in a file; none for formats without names."""
    suffix = suffix_of(path)
    if suffix == ".npz":
        with readable(str(path), "a .npz array"), Archive(path, "a .npz array") as archive:
            names = [member.filename for member in archive.members]
        return [name.removesuffix(".npy") for name in names if name.endswith(".npy")]
    if suffix == ".safetensors":
        with readable(str(path), "a file of safetensors"), open_bytes(path) as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, _MAX_HEADER)))
            return [name for name in header if name != "__metadata__"]
    if suffix == ".pt":
        with readable(str(path), "a file of torch.save"):
            return list(tensors_of(path))
    return []


def class_axis_length(path: Path, options: MapOptions) -> int:
    """Return how many classes a file has, by its shape: (K, H, W), or (1, K, H, W), or a channel axis of its format.

    Raises:
        InputError: It has another number of axes.
    """
    with _open(path, options.key) as stored:
        shape, channels = stored.shape, stored.channels
    if channels is not None:
        return shape[channels]
    if options.channels_last:
        return shape[-1]
    kept = list(shape)
    while len(kept) > 3 and kept[0] == 1:
        kept.pop(0)
    if len(kept) == 2:
        return 1
    if len(kept) != 3:
        raise InputError(path, f"an array of shape {shape}", "(K, H, W), one score per class; --format plain otherwise")
    return kept[0]


def with_meaning(path: Path, options: MapOptions, classes: int, alternative: str) -> tuple[MapOptions, str]:
    """Return options that specify the meaning of a file's values, and that meaning, if only one is possible.

    Args:
        path: The first file of the folder.
        options: The given options, which are not questioned.
        classes: K.
        alternative: What values of 0 or more may be besides logits, for the error message.

    Raises:
        InputError: Two meanings are possible.
    """
    if options.logits or options.normalise or options.max_value is not None:
        return options, "logits" if options.logits else "scores"
    with _open(path, options.key) as stored:
        shape = stored.shape
        if 0 in shape or not np.issubdtype(stored.dtype, np.floating):
            raise InputError(path, f"values of type {stored.dtype}", "scores, which are floats")
        if len(shape) < 2 + (classes > 1):
            raise InputError(path, f"an array of shape {shape}", "(K, H, W), one score per class")
        axis = stored.channels
        if axis is None:
            axis = len(shape) - (1 if options.channels_last else min(len(shape), 3))
        lowest, highest, miss = _extremes(stored, axis)
    if lowest < 0.0:
        return replace(options, logits=True), "logits"
    if highest <= 1.0 + 1e-6 and (classes == 1 or options.multilabel or miss <= SUM_TOLERANCE):
        return options, "probabilities"
    raise InputError(path, "scores without a negative value", f"--logits if they are logits, {alternative}")


def _extremes(stored: LazyArray, axis: int) -> tuple[float, float, float]:
    """Return the lowest and the highest value, and the largest distance of sums along an axis from 1."""
    along = next((other for other, length in enumerate(stored.shape) if other != axis and length > 1), int(axis == 0))
    others = (*stored.shape[:along], *stored.shape[along + 1 :])
    extremes = []
    for chunk in row_chunks((stored.shape[along], *others)):
        values = stored.read((slice(None),) * along + (chunk,))
        miss = np.abs(values.sum(axis=axis, dtype=np.float64) - 1.0).max()
        extremes.append((float(values.min()), float(values.max()), float(miss)))
    lowest, highest, misses = np.array(extremes).T
    return float(lowest.min()), float(highest.max()), float(misses.max())


def dtype_of(path: Path) -> np.dtype[Any]:
    """Return the type of the values of a file."""
    with _open(path, None) as stored:
        return stored.dtype


def _open(path: Path, key: str | None) -> AbstractContextManager[LazyArray]:
    reader = find_reader(path)
    assert reader is not None
    return reader(path, key, _MAX_VALUES)


def choose_key(names: Iterable[str], known: Sequence[str]) -> str | None:
    """Return the first of the known names that a file has."""
    present = set(names)
    return next((name for name in known if name in present), None)
