"""GeoTIFF rasters as lazy arrays (bands, H, W), read in windows by rasterio; pixels without data are void."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.geometry import Geometry
from densecal.io.images import bounded_source
from densecal.io.readers.protocol import Window
from densecal.io.readers.stored import check_numbers, check_size, missing_extra, readable, refuse_scaled
from densecal.io.urls import is_remote

TAGS = (33550, 33922, 34264, 34735, 42113)
"""Tags that make a TIFF a GeoTIFF: scale, tie points, transformation, keys, nodata."""
_EXPECTED = "a complete GeoTIFF"
_CACHE_MEGABYTES = 64


class Raster:
    """The bands of a GeoTIFF."""

    channels = 0

    def __init__(self, dataset: Any, name: str) -> None:
        self._dataset, self._name = dataset, name
        self.shape: tuple[int, ...] = (dataset.count, dataset.height, dataset.width)
        self.dtype: np.dtype[Any] = np.dtype(dataset.dtypes[0])
        self._has_void = any("all_valid" not in {flag.name for flag in flags} for flags in dataset.mask_flag_enums)

    @property
    def geometry(self) -> Geometry | None:
        """Transformation and coordinate reference system, if the file has them."""
        transform, system = self._dataset.transform, self._dataset.crs
        if transform.is_identity and system is None:
            return None
        steps = np.array([[transform.b, transform.e], [transform.a, transform.d]])
        text = "" if system is None else system.to_string()
        return Geometry(steps, np.array([transform.c, transform.f]), text)

    @property
    def georeference(self) -> dict[str, Any]:
        """The profile with which rasterio gives another file the same position."""
        points, system = self._dataset.gcps
        nodata, transform = self._dataset.nodata, self._dataset.transform
        if points:
            return {"gcps": points, "crs": system, "nodata": nodata}
        affine = {} if transform.is_identity else {"transform": transform}
        return {"crs": self._dataset.crs, "nodata": nodata, **affine}

    @property
    def names(self) -> tuple[str | None, ...]:
        """Names of the bands."""
        return tuple(self._dataset.descriptions)

    def read(self, window: Window = ()) -> NDArray[Any]:
        """Read values of a window."""
        bands, part = self._parts(window)
        with readable(self._name, _EXPECTED):
            return np.asarray(self._dataset.read(bands, window=part))

    def read_void(self, window: Window = ()) -> NDArray[np.bool_] | None:
        """Return where the file says that there is no data."""
        if not self._has_void:
            return None
        bands, part = self._parts(window)
        with readable(self._name, _EXPECTED):
            return np.asarray(self._dataset.read_masks(bands, window=part) == 0)

    def _parts(self, window: Window) -> tuple[list[int], tuple[tuple[int, int], tuple[int, int]]]:
        whole = (*window, *(slice(None) for _ in self.shape[len(window) :]))
        bands, rows, columns = (range(length)[part] for length, part in zip(self.shape, whole, strict=True))
        return [band + 1 for band in bands], ((rows.start, rows.stop), (columns.start, columns.stop))


@contextmanager
def open_raster(path: Path, max_values: int) -> Iterator[Raster]:
    """Open a GeoTIFF."""
    name = str(path)
    try:
        import rasterio.errors
        from rasterio.io import MemoryFile
    except ModuleNotFoundError:
        raise missing_extra(name, "rasterio", "geo") from None
    options = {"GDAL_CACHEMAX": _CACHE_MEGABYTES, "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR"}
    with rasterio.Env(**options), warnings.catch_warnings():
        # a file that specifies only which pixels have no data is valid
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        if is_remote(path):
            with (
                MemoryFile(bounded_source(path, name, 16 * max_values).read()) as file,  # type: ignore[union-attr]
                file.open(driver="GTiff") as dataset,
            ):
                yield _check_bands(dataset, name, max_values)
        else:
            with rasterio.open(path, driver="GTiff") as dataset:
                yield _check_bands(dataset, name, max_values)


def _check_bands(dataset: Any, name: str, max_values: int) -> Raster:
    if len(set(dataset.dtypes)) > 1:
        raise InputError(name, "bands of several types", "bands of one type")
    raster = Raster(dataset, name)
    check_numbers(raster.dtype, name)
    for factor, offset in zip(dataset.scales, dataset.offsets, strict=True):
        refuse_scaled(factor, offset, name, ": gdal_translate -unscale -ot Float32")
    check_size(raster.shape, name, max_values)
    for shape in dataset.block_shapes:
        check_size((math.prod(shape),), name, max(max_values, 1 << 22))
    return raster
