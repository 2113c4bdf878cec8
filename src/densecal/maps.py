"""Writing probability maps band by band, so that memory does not grow with the classes and hardly with the pixels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from densecal.files import write_atomically

FORMATS = ("png16", "png8", "npy")
_BAND_VALUES = 1 << 20
"""Ten copies of so many float64 numbers do not count."""
_DTYPES: dict[str, np.dtype[Any]] = {"png16": np.dtype(np.uint16), "png8": np.dtype(np.uint8), "npy": np.dtype("<f4")}

Array = NDArray[Any]


def write_map(
    stem: Path, bands: Iterable[Array], size: tuple[int, int], format: str, uncertainty: bool = False
) -> None:
    """Write a map as PNG or .npy, and beside it its uncertainty.

    Args:
        stem: The file without its suffix; may hold dots.
        bands: Probabilities (classes, rows, W) from top to bottom.
        size: Height and width of the whole.
        format: One of ``FORMATS``; PNG is for one class.
        uncertainty: Also write the confidence of the winning class and the entropy, as a share of its maximum, into
            ``confidence/`` and ``entropy/``.
    """
    names = ("confidence", "entropy") if uncertainty else ()
    planes = {name: np.empty(size, _DTYPES[format]) for name in names}

    def encoded() -> Iterator[Array]:
        done = 0
        for p in _thinner(bands):
            rows = slice(done, done + p.shape[1])
            done = rows.stop
            for plane, values in zip(planes.values(), _uncertainty(p) if uncertainty else (), strict=True):
                plane[rows] = _encoded(values, format)
            yield _encoded(p, format)

    if format == "npy":
        write_atomically(stem.with_name(f"{stem.name}.npy"), lambda stream: _save_bands(stream, encoded(), size))
    else:
        _write_plane(stem, np.concatenate([band[0] for band in encoded()]), format)
    for name, plane in planes.items():
        _write_plane(stem.parent / name / stem.name, plane, format)


def _thinner(bands: Iterable[Array]) -> Iterator[NDArray[np.float64]]:
    """Bands of fewer rows, in float64."""
    for band in bands:
        rows = max(1, _BAND_VALUES // (band.shape[0] * band.shape[2]))
        for first in range(0, band.shape[1], rows):
            yield band[:, first : first + rows].astype(np.float64)


def _uncertainty(p: NDArray[np.float64]) -> tuple[Array, Array]:
    """Confidence of the winning class, and entropy divided by its maximum."""
    classes = np.concatenate([1.0 - p, p]) if len(p) == 1 else p
    logs = np.log(np.clip(classes, 1e-300, 1.0))
    return classes.max(axis=0), -(classes * logs).sum(axis=0) / np.log(len(classes))


def _encoded(p: Array, format: str) -> Array:
    """Probabilities as the numbers that a file holds."""
    kind = _DTYPES[format]
    return np.asarray(p.astype(kind) if format == "npy" else np.rint(p * np.iinfo(kind).max).astype(kind))


def _save_bands(stream: BinaryIO, bands: Iterable[Array], size: tuple[int, int]) -> None:
    """A .npy file, (H, W) for one class and (classes, H, W) for several; every band goes to its places in it."""
    height, width = size
    start = done = 0
    for band in bands:
        if not start:
            shape = size if len(band) == 1 else (len(band), *size)
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[no-untyped-call]
            start = stream.tell()
        for channel, rows in enumerate(band):
            stream.seek(start + 4 * width * (channel * height + done))
            stream.write(rows.tobytes())
        done += band.shape[1]


def _write_plane(stem: Path, plane: Array, format: str) -> None:
    """One map (H, W), encoded already."""
    if format == "npy":
        write_atomically(stem.with_name(f"{stem.name}.npy"), lambda stream: np.save(stream, plane))
        return
    image = Image.fromarray(plane)
    write_atomically(stem.with_name(f"{stem.name}.png"), lambda stream: image.save(stream, "png", compress_level=1))
