"""TIFF files of several bands or pages, or of types that Pillow does not read, as lazy arrays (bands, H, W)."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tifffile import TiffFile, TiffPage

from densecal.errors import InputError
from densecal.io.geometry import Geometry
from densecal.io.images import bounded_source, grey_levels, open_image
from densecal.io.readers.geotiff import TAGS, open_raster
from densecal.io.readers.protocol import LazyArray, Window
from densecal.io.readers.stored import readable

_EXPECTED = "a complete TIFF file"
_MAX_PAGES = 1000
_NONE, _DEFLATE = 1, (8, 32946)
_METADATA = 42112
"""The tag of GDAL's metadata, in XML."""
_INFLATION = 1032
"""The highest compression ratio of deflate."""
_MAX_INFLATED = 1 << 26
"""Segments that cannot inflate beyond this are decoded without a check."""

logging.getLogger("tifffile").addHandler(logging.NullHandler())  # it would log several lines about a damaged file


@dataclass(frozen=True)
class TiffArray:
    """The bands or pages of a TIFF file, without smaller copies of pages."""

    pages: tuple[TiffPage, ...]
    name: str
    max_values: int
    geometry: Geometry | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """(bands or pages, H, W)."""
        page = self.pages[0]
        return (len(self.pages) * page.samplesperpixel, page.imagelength, page.imagewidth)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values."""
        return np.dtype(self.pages[0].dtype)

    @property
    def channels(self) -> int:
        """Bands come first, however they are stored."""
        return 0

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read bands."""
        planes = []
        for page in self.pages:
            with readable(self.name, _EXPECTED):
                _check_segments(page, self.name, self.max_values)
                array = page.asarray(squeeze=False)  # (separate bands, depth, H, W, interleaved bands)
            planes.append(np.moveaxis(array[:, 0], -1, 1).reshape(-1, *array.shape[2:4]))
        return np.asarray(np.concatenate(planes)[window])

    def read_void(self, window: Window = ()) -> None:
        """Return ``None``: such files do not mark values as missing."""


@dataclass(frozen=True)
class GreyTiff:
    """A TIFF file of one grey page, which Pillow reads in all compressions."""

    path: Path
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    max_values: int
    channels: None = None
    geometry: None = None

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read the page."""
        with open_image(self.path, str(self.path), self.max_values, "one grey picture") as image:
            return grey_levels(image, str(self.path), "a grey map")[window]

    def read_void(self, window: Window = ()) -> None:
        """Return ``None``: such files do not mark values as missing."""


@contextmanager
def open_tiff(path: Path, key: str | None, max_values: int) -> Iterator[LazyArray]:
    """Open a TIFF file; ``key`` is for formats that hold several arrays."""
    name = str(path)
    if key is not None:
        raise InputError(name, "a TIFF file", "an archive of arrays for --key")
    with ExitStack() as stack:
        with readable(name, _EXPECTED):
            file = stack.enter_context(TiffFile(bounded_source(path, name, 16 * max_values)))
            pages = tuple(_pages(file, name))
            first = pages[0]
            grey = len(pages) == 1 and first.samplesperpixel == 1
            if _is_raster(first):
                array: LazyArray = stack.enter_context(open_raster(path, max_values))
            elif grey and first.dtype in (np.bool_, np.uint8, np.uint16, np.float32):
                array = GreyTiff(path, (first.imagelength, first.imagewidth), np.dtype(first.dtype), max_values)
            else:
                _check_pages(pages, name, max_values)
                array = TiffArray(pages, name, max_values)
        yield array


def is_geotiff(path: Path) -> bool:
    """Return whether a TIFF file says more of its pixels than pictures do; false for damaged files."""
    try:
        with TiffFile(bounded_source(path, str(path), 1 << 40)) as file:
            return _is_raster(file.pages.first)
    except Exception:  # reading the pixels will report the error
        return False


def _is_raster(page: TiffPage) -> bool:
    """Return whether a page specifies a position, a value for no data, or a scale of its values."""
    metadata = page.tags.get(_METADATA)
    return any(tag in page.tags for tag in TAGS) or (metadata is not None and 'role="scale"' in str(metadata.value))


def _pages(file: TiffFile, name: str) -> Iterator[TiffPage]:
    for count, page in enumerate(file.pages):
        if count == _MAX_PAGES:
            raise InputError(name, f"more than {_MAX_PAGES:,} pages", "one page, or one per class")
        if isinstance(page, TiffPage) and not page.is_reduced:
            yield page


def _check_pages(pages: tuple[TiffPage, ...], name: str, max_values: int) -> None:
    """Refuse, before any value is read, a file that is not one array of bands or is too large."""
    first = pages[0]
    bands = first.samplesperpixel
    if len(pages) > 1 and bands > 1:
        raise InputError(name, f"{len(pages)} pages of {bands} bands", "pages of one band, or bands in one page")
    for page in pages:
        if (page.imagelength, page.imagewidth, page.dtype) != (first.imagelength, first.imagewidth, first.dtype):
            raise InputError(name, "pages of different sizes or types", "pages of one size and type")
        if page.dtype is None or page.imagedepth != 1:
            raise InputError(name, "pixels of an unsupported type", "8- or 16-bit levels, or floats")
        if page.tags.valueof(274, 1) != 1:
            raise InputError(name, f"orientation {page.tags.valueof(274)}", "pixels stored upright")
    values = len(pages) * bands * first.imagelength * first.imagewidth
    if values > max_values:
        raise InputError(name, f"{values:,} values", f"at most {max_values:,} (raise the limit with --max-pixels)")


def _check_segments(page: TiffPage, name: str, max_values: int) -> None:
    """Refuse strips and tiles that are missing, would need too much memory, or cannot be decoded."""
    if page.compression not in (_NONE, *_DEFLATE):
        kind = getattr(page.compression, "name", page.compression)
        raise InputError(name, f"{kind} compression of several bands or pages", "no compression, or deflate")
    if page.tilewidth * page.tilelength * page.samplesperpixel > max(max_values, 1 << 20):
        actual = f"tiles of {page.tilewidth} x {page.tilelength} pixels"
        raise InputError(name, actual, f"at most {max_values:,} values (raise the limit with --max-pixels)")
    handle = page.parent.filehandle
    for offset, size in zip(page.dataoffsets, page.databytecounts, strict=True):
        if size == 0 or offset + size > handle.size:
            raise InputError(name, "a file cut short", "a complete TIFF file")
        if page.compression != _NONE and size * _INFLATION > _MAX_INFLATED:
            handle.seek(offset)
            limit = max_values * 8 + 1
            if len(zlib.decompressobj().decompress(handle.read(size), limit)) == limit:
                raise InputError(name, "a strip or tile that is larger than the image", "a complete TIFF file")
