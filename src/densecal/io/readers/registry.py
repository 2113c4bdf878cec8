"""The reader of a file, chosen by suffix. Other packages add readers by entry points of the group `densecal.readers`.

The name of an entry point is the suffix without its dot; its object is a `Reader`.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from densecal.io.readers.protocol import Reader
from densecal.io.suffixes import IMAGE_SUFFIXES, suffix_of

GROUP = "densecal.readers"
_OWN = {
    suffix: EntryPoint(suffix, f"densecal.io.readers.{module}", GROUP)
    for suffix, module in {
        ".npy": "arrays:open_array",
        ".npz": "arrays:open_array",
        ".nii": "nifti:open_nifti",
        ".nii.gz": "nifti:open_nifti",
        ".mha": "metaimage:open_metaimage",
        ".mhd": "metaimage:open_metaimage",
        ".nrrd": "nrrd:open_nrrd",
        ".nhdr": "nrrd:open_nrrd",
        ".zarr": "zarr_arrays:open_zarr",
        ".h5": "hdf5:open_hdf5",
        ".hdf5": "hdf5:open_hdf5",
        ".safetensors": "tensors:open_safetensors",
        ".pt": "tensors:open_torch",
        ".tif": "tiff:open_tiff",
        ".tiff": "tiff:open_tiff",
    }.items()
}
"""Loaded when the first file of a format is opened, so that PNG maps need none of them."""


def find_reader(path: Path) -> Reader | None:
    """Return the reader of a file, or ``None`` for the images that Pillow reads."""
    return _load(suffix_of(path))


@cache
def other_suffixes() -> tuple[str, ...]:
    """Return the suffixes for which other packages have readers, each with its dot."""
    return tuple(sorted(_others().keys() - _OWN.keys() - set(IMAGE_SUFFIXES)))


@cache
def _others() -> dict[str, EntryPoint]:
    return {f".{point.name.lower()}": point for point in entry_points(group=GROUP)}


@cache
def _load(suffix: str) -> Reader | None:
    point = _OWN.get(suffix)
    if point is None and suffix not in IMAGE_SUFFIXES:
        point = _others().get(suffix)
    reader: Reader | None = None if point is None else point.load()
    return reader
