"""GeoTIFF maps, written with the georeference and the pixels without data of the map that they are made from."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.io.atomic import write_atomically
from densecal.io.outputs import software
from densecal.io.readers.geotiff import open_raster

_LARGEST_TIFF = 1 << 31
"""Larger files get wider offsets."""


def write_raster(path: Path, values: NDArray[Any], void: NDArray[np.bool_] | None, source: Path, command: str) -> None:
    """Write probabilities as a GeoTIFF, in float32 or float64, with a band per class.

    Args:
        path: The file.
        values: (H, W) or (K, H, W).
        void: (H, W), the pixels without data.
        source: The map whose position, coordinate system, nodata value and names of bands are kept.
        command: The command that writes it, by which it recognises its files.
    """
    from rasterio.errors import NotGeoreferencedWarning
    from rasterio.io import MemoryFile

    with open_raster(source, sys.maxsize) as raster:  # it has been read already
        georeference, names = raster.georeference, raster.names
    nodata = georeference.pop("nodata")
    if nodata is not None and (0 <= nodata <= 1 or np.isinf(values.dtype.type(nodata))):
        nodata = np.nan  # probabilities could equal it, or it exceeds the range of the type
    if nodata is None and void is not None:
        nodata = np.nan
    bands = values.reshape(-1, *values.shape[-2:])
    if void is not None:
        bands = np.where(void, values.dtype.type(nodata), bands)
    profile = {
        "driver": "GTiff", "count": len(bands), "height": bands.shape[1], "width": bands.shape[2],
        "dtype": bands.dtype.name, "nodata": nodata, "tiled": True, "compress": "deflate", "predictor": 3,
        "BIGTIFF": "YES" if bands.nbytes > _LARGEST_TIFF else "NO",
    }  # fmt: skip
    with MemoryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore", NotGeoreferencedWarning)
        with file.open(**profile, **georeference) as dataset:
            dataset.update_tags(TIFFTAG_SOFTWARE=software(command))
            if len(names) == len(bands):
                dataset.descriptions = names
            dataset.write(bands)
        write_atomically(path, lambda stream: stream.write(file.getbuffer()))
