"""File suffixes by what they hold, and names without them: `case.nii.gz` is `case`."""

from __future__ import annotations

from pathlib import Path

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff")
ARRAY_SUFFIXES = (".npy", ".npz")
VOLUME_SUFFIXES = (".nii", ".nii.gz", ".mha", ".mhd", ".nrrd", ".nhdr")
CONTAINER_SUFFIXES = (".zarr", ".h5", ".hdf5", ".safetensors", ".pt")
MASK_SUFFIXES = (*IMAGE_SUFFIXES, *ARRAY_SUFFIXES, *VOLUME_SUFFIXES, *CONTAINER_SUFFIXES)
FOLDER_SUFFIXES = (".zarr",)
"""Suffixes of folders that are treated as one file."""

_DOUBLE = (".nii.gz",)


def suffix_of(path: Path) -> str:
    """Return the suffix of a path in lower case, `.nii.gz` as one."""
    name = path.name.lower()
    return next((double for double in _DOUBLE if name.endswith(double)), path.suffix.lower())


def stem_of(path: Path) -> str:
    """Return the name of a path without its suffix."""
    suffix = suffix_of(path)
    return path.name[: -len(suffix)] if suffix in _DOUBLE else path.stem
