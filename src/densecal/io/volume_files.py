"""Volumes on disk: read for a network, and maps written in the format of the file that they were made from."""

from __future__ import annotations

import gzip
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.atomic import write_atomically
from densecal.io.geometry import Geometry
from densecal.io.outputs import software
from densecal.io.readers.nifti import read_header
from densecal.io.readers.registry import find_reader
from densecal.io.suffixes import suffix_of
from densecal.io.urls import open_bytes

_KINDS = {".nii": "nii", ".nii.gz": "nii.gz", ".mha": "mha", ".mhd": "mha", ".nrrd": "nrrd", ".nhdr": "nrrd"}
_TO_LPS = np.array([-1.0, -1.0, 1.0])
_COMPRESSION = 4
"""Compression level of gzip. Higher levels take several times as long to save a few per cent."""

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Volume:
    """A volume as the input of a network.

    Attributes:
        values: (channels, D, H, W), finite; (channels, Z, Y, X) where the format says its axes.
        geometry: Where the voxels lie, if the format specifies it.
    """

    values: NDArray[np.float32]
    geometry: Geometry | None = None


def read_volume(path: Path, max_voxels: int) -> Volume:
    """Read a volume, (D, H, W) or (channels, D, H, W) where the format does not say its axes.

    Raises:
        InputError: It is not a volume, is too large, or has values that are not finite.
    """
    reader = find_reader(path)
    if reader is None:
        raise InputError(path, "a picture", "a volume")
    with reader(path, None, max_voxels) as stored:
        shape, channels = stored.shape, stored.channels
        channels = len(shape) - 4 if channels is None and len(shape) > 3 else channels
        space = [axis for axis in range(len(shape)) if axis != channels]
        if len(space) < 3 or math.prod(shape[axis] for axis in space[:-3]) != 1 or 0 in shape:
            raise InputError(path, f"an array of shape {shape}", "a volume (D, H, W), or (channels, D, H, W)")
        order = [*space[:-3], *([] if channels is None else [channels]), *space[-3:]]
        values = np.transpose(stored.read(), order)[(0,) * (len(space) - 3)]
        values = np.asarray(values if channels is not None else values[None], np.float32)
        if not np.isfinite(values).all():
            raise InputError(path, "NaN or infinite values", "finite values")
        return Volume(values, stored.geometry)


def volume_kind(source: Path) -> str | None:
    """Return the format in which a map made from a file is written; ``None`` for files that are not volumes."""
    return _KINDS.get(suffix_of(source))


def write_volume(stem: Path, values: Array, source: Path, command: str) -> None:
    """Write a map with the grid, and in the format, of the file that it was made from.

    Args:
        stem: The file without its suffix; may contain dots.
        values: (D, H, W), or (K, D, H, W) for K classes.
        source: The file.
        command: The command that writes it, by which it recognises its files.
    """
    kind = volume_kind(source)
    assert kind is not None
    plain = np.ascontiguousarray(values, np.dtype(values.dtype).newbyteorder("<"))
    path = stem.with_name(f"{stem.name}.{kind}")
    if kind in ("nii", "nii.gz"):
        content = _nifti_header(plain, source, command)
    else:
        reader = find_reader(source)
        assert reader is not None
        with reader(source, None, sys.maxsize) as stored:  # the source has been read already
            geometry = stored.geometry
        _check_place(geometry, source)
        if values.ndim == 4:  # classes vary fastest
            plain = np.ascontiguousarray(np.moveaxis(plain, 0, -1))
        header = _metaimage_header if kind == "mha" else _nrrd_header
        content = header(plain, values.ndim == 4, geometry, command)

    def write(stream: BinaryIO) -> None:
        if kind == "nii.gz":
            with gzip.GzipFile("", "wb", _COMPRESSION, stream, mtime=0) as packed:
                packed.write(content)
                packed.write(plain.data)
        else:
            stream.write(content)
            stream.write(plain.data)

    write_atomically(path, write)


def _nifti_header(values: Array, source: Path, command: str) -> bytes:
    """Return the header of a NIfTI file: that of the source, adapted to other values."""
    with open_bytes(source) as stream:
        packed = stream.read(2) == b"\x1f\x8b"
        stream.seek(0)
        content = cast(BinaryIO, gzip.GzipFile(fileobj=stream)) if packed else stream
        header = read_header(content, str(source)).as_byteswapped("<")
    others = tuple(header.get_data_shape()[3:])
    header.set_data_dtype(values.dtype)
    several = values.shape[: values.ndim - 3]
    axes = others if math.prod(others) == math.prod(several) > 1 else several
    header.set_data_shape((*values.shape[:-4:-1], *axes))
    header.set_slope_inter(1.0, 0.0)
    header["descrip"] = software(command).encode()
    header["cal_min"], header["cal_max"] = 0.0, 1.0
    header["vox_offset"] = -(-(int(header["sizeof_hdr"]) + 4) // 16) * 16
    return bytes(header.binaryblock).ljust(int(header["vox_offset"]), b"\0")


def _check_place(geometry: Geometry | None, source: Path) -> None:
    """Refuse a geometry that no header can express."""
    if geometry is None:
        return
    lengths = np.array(geometry.spacing)
    finite = np.isfinite(lengths).all() and np.isfinite(geometry.origin).all()
    if geometry.steps.shape != (3, 3) or not finite or not lengths.all():
        raise InputError(source, "voxels without a place in the world", "three steps of non-zero length, and an origin")


def _lps(geometry: Geometry) -> tuple[Array, Array]:
    """Return the steps along x, y and z, and the origin, in ITK's world to the left, posterior and superior."""
    return geometry.steps[::-1] * _TO_LPS, geometry.origin * _TO_LPS


def _metaimage_header(values: Array, several: bool, geometry: Geometry | None, command: str) -> bytes:
    assert geometry is not None
    steps, origin = _lps(geometry)
    spacing = np.linalg.norm(steps, axis=1)
    lengths = values.shape[:3]
    lines = {
        "Comment": software(command),
        "ObjectType": "Image",
        "NDims": "3",
        "BinaryData": "True",
        "BinaryDataByteOrderMSB": "False",
        "CompressedData": "False",
        "TransformMatrix": _words(steps / spacing[:, None]),
        "Offset": _words(origin),
        "ElementSpacing": _words(spacing),
        "DimSize": " ".join(map(str, lengths[::-1])),
        "ElementNumberOfChannels": str(values.shape[3] if several else 1),
        "ElementType": {"f4": "MET_FLOAT", "f8": "MET_DOUBLE"}[values.dtype.str[1:]],
        "ElementDataFile": "LOCAL",
    }
    return "".join(f"{key} = {value}\n" for key, value in lines.items()).encode()


def _nrrd_header(values: Array, several: bool, geometry: Geometry | None, command: str) -> bytes:
    lines = [
        "NRRD0004",
        f"# {software(command)}",
        f"type: {'float' if values.itemsize == 4 else 'double'}",
        f"dimension: {values.ndim}",
        f"sizes: {' '.join(map(str, values.shape[::-1]))}",
        "encoding: raw",
        "endian: little",
        f"kinds: {'vector ' * several}domain domain domain",
    ]
    if geometry is not None:
        steps, origin = _lps(geometry)
        vectors = [f"({_words(step, ',')})" for step in steps]
        lines.insert(3, "space: left-posterior-superior")
        lines += [
            f"space directions: {' '.join(['none'] * several + vectors)}",
            f"space origin: ({_words(origin, ',')})",
        ]
    return ("\n".join(lines) + "\n\n").encode()


def _words(numbers: Array, separator: str = " ") -> str:
    return separator.join(repr(float(number)) for number in numbers.ravel())
