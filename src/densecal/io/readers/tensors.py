"""Tensors of `.safetensors` and `.pt` files as lazy arrays. Such files do not specify the meaning of their axes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.readers.stored import FileArray, StoredArray, check_size, choose_array, readable
from densecal.io.urls import open_bytes

_EXPECTED = "a complete file of safetensors"
_MAX_HEADER = 1 << 24
_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "?",
}  # fmt: skip


@contextmanager
def open_safetensors(path: Path, key: str | None, max_values: int) -> Iterator[FileArray]:
    """Open a tensor of a `.safetensors` file: its only one, or the one with the given name."""
    name = str(path)
    with ExitStack() as stack:
        with readable(name, _EXPECTED):
            stream = stack.enter_context(open_bytes(path))
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= _MAX_HEADER:
                raise InputError(name, f"a header of {length:,} bytes", _EXPECTED)
            header = json.loads(stream.read(length))
            header.pop("__metadata__", None)
            entry = header[choose_array(list(header), name, key, "a file")]
            kind = _TYPES.get(entry["dtype"])
            if kind is None:
                raise InputError(name, f"values of type {entry['dtype']}", "plain numbers")
            shape = tuple(int(number) for number in entry["shape"])
            check_size(shape, name, max_values)
            start, end = (8 + length + int(position) for position in entry["data_offsets"])
            if min(shape, default=0) < 0 or end - start != int(np.prod(shape, dtype=object)) * np.dtype(kind).itemsize:
                raise InputError(name, f"{end - start:,} bytes for shape {shape}", _EXPECTED)
            if stream.seek(0, 2) < end:
                raise InputError(name, "a file cut short", _EXPECTED)
            convert = _from_bfloat16 if entry["dtype"] == "BF16" else None
            array = FileArray(stream, name, start, np.dtype(kind), shape, convert=convert)
        yield array


def _from_bfloat16(values: NDArray[Any]) -> NDArray[np.float32]:
    return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)


@contextmanager
def open_torch(path: Path, key: str | None, max_values: int) -> Iterator[StoredArray]:
    """Open a tensor that `torch.save` wrote, alone or in nested dictionaries, whose keys the name joins with dots."""
    with readable(str(path), "a file of torch.save"):
        tensors = tensors_of(path)
        tensor = tensors[choose_array(list(tensors), str(path), key, "a file")]
        check_size(tensor.shape, str(path), max_values)
        values = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    yield StoredArray(values)


def tensors_of(path: Path) -> dict[str, Any]:
    """Return the tensors that `torch.save` wrote, by the keys on the path to each, joined with dots."""
    from densecal.io.torch_files import read_torch_file

    return dict(_tensors(read_torch_file(path), ""))


def _tensors(content: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in nested dictionaries with their paths."""
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _tensors(value, f"{name}.{key}" if name else str(key))
    elif hasattr(content, "is_floating_point"):
        yield name, content
