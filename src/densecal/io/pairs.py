"""Maps and their masks: matched by file stem, and read at the size of the mask."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io import MAX_PIXELS
from densecal.io.folders import files_in, folders_in, subfolder_hint
from densecal.io.images import IMAGE_SUFFIXES
from densecal.io.map_files import MAP_SUFFIXES, read_map
from densecal.io.masks import VOID, ForegroundMask, read_foreground, read_labels
from densecal.io.urls import exists, is_folder

Array = NDArray[Any]


@dataclass(frozen=True)
class Pair:
    """A prediction map and its mask; without a mask, every pixel is background."""

    stem: str
    prediction: Path
    mask: Path | None


@dataclass(frozen=True)
class ForegroundPair:
    """A foreground map at the size of its mask.

    Attributes:
        prediction: uint8 or uint16 levels, or floats in [0, 1], (H, W).
        mask: Foreground, background and void.
        resized: Whether the map had another size.
    """

    prediction: Array
    mask: ForegroundMask
    resized: bool

    @property
    def valid(self) -> NDArray[np.bool_]:
        """Where the mask is not void."""
        return np.ones(self.prediction.shape, bool) if self.mask.void is None else ~self.mask.void


def read_foreground_pair(pair: Pair, ignore_index: int | None = None, max_pixels: int = MAX_PIXELS) -> ForegroundPair:
    """Read a foreground map and its mask.

    Args:
        pair: The files.
        ignore_index: Mask level of void pixels.
        max_pixels: Refuse larger files.
    """
    prediction = read_map(pair.prediction, max_pixels=max_pixels)
    if pair.mask is None:
        return ForegroundPair(prediction, ForegroundMask(np.zeros(prediction.shape, bool)), False)
    mask = read_foreground(pair.mask, str(pair.mask), ignore_index, max_pixels)
    if mask.foreground.size == 0:
        raise InputError(pair.mask, "no pixels", "at least one pixel")
    shape = mask.foreground.shape
    resized = prediction.shape != shape
    return ForegroundPair(resize_map(prediction, shape) if resized else prediction, mask, resized)


def read_class_pair(
    pair: Pair, classes: int, ignore_index: int | None = None, max_pixels: int = MAX_PIXELS
) -> tuple[Array, NDArray[np.uint8], bool]:
    """Read a softmax map and its mask of K classes.

    Args:
        pair: The files.
        classes: K.
        ignore_index: Label of void pixels; 255 unless given.
        max_pixels: Refuse larger files.

    Returns:
        The map (K, H, W) at the size of the mask, the labels (H, W), and whether the map had another size.
    """
    assert pair.mask is not None
    prediction = read_map(pair.prediction, classes, max_pixels)
    void = VOID if ignore_index is None else ignore_index
    labels = read_labels(pair.mask, str(pair.mask), classes, void, max_pixels)
    resized = prediction.shape[1:] != labels.shape
    return resize_map(prediction, labels.shape) if resized else prediction, labels, resized


def resize_map(prediction: Array, shape: tuple[int, ...]) -> Array:
    """Resize probabilities bilinearly (corners not aligned), as floats."""
    import torch
    from torch.nn.functional import interpolate

    levels = {np.dtype(np.uint8): 255.0, np.dtype(np.uint16): 65535.0}.get(prediction.dtype, 1.0)
    maps = torch.from_numpy(prediction.astype(np.float64) / levels)
    channels = maps[None] if maps.ndim == 3 else maps[None, None]
    resized = interpolate(channels, size=shape, mode="bilinear", align_corners=False)[0]
    return resized.clamp_(0.0, 1.0).numpy() if maps.ndim == 3 else resized[0].clamp_(0.0, 1.0).numpy()


def find_pairs(predictions: Path, masks: Path, skip_bad: bool = False) -> tuple[list[Pair], list[InputError]]:
    """Match maps and masks by stem.

    Returns:
        The pairs sorted by stem, and an error for each file that has no partner (empty unless
        ``skip_bad``).
    """
    maps = _by_stem(predictions, MAP_SUFFIXES, "prediction map")
    truths = _by_stem(masks, IMAGE_SUFFIXES, "mask")
    unpaired = [
        InputError(maps[stem], "no mask of that name", f"{masks / stem} with an image suffix")
        for stem in sorted(maps.keys() - truths.keys())
    ]
    unpaired += [
        InputError(
            truths[stem],
            "no prediction map of that name",
            f"{predictions / stem} with an image or array suffix",
        )
        for stem in sorted(truths.keys() - maps.keys())
    ]
    if unpaired and not skip_bad:
        more = f" ({len(unpaired)} files have no partner)" if len(unpaired) > 1 else ""
        raise InputError(unpaired[0].where, unpaired[0].found + more, unpaired[0].expected)
    return [Pair(stem, maps[stem], truths[stem]) for stem in sorted(maps.keys() & truths.keys())], unpaired


def find_maps(predictions: Path) -> list[Pair]:
    """List the maps of a folder, for images without foreground."""
    maps = _by_stem(predictions, MAP_SUFFIXES, "prediction map")
    return [Pair(stem, maps[stem], None) for stem in sorted(maps)]


def find_comparisons(predictions: Path, masks: Path) -> list[tuple[str, str, Path, Path]]:
    """List the evaluations that a folder holds, each as (method, data set, maps, masks).

    ``predictions`` holds maps, or METHOD folders of maps, or METHOD/DATASET folders of maps; in the last case
    ``masks`` holds a folder for every DATASET.
    """
    check_folder(predictions, "a folder of prediction maps")
    check_folder(masks, "a folder of masks")
    if files_in(predictions, MAP_SUFFIXES) or not folders_in(predictions):
        return [(predictions.resolve().name, dataset_name(masks), predictions, masks)]
    comparisons = []
    for method in folders_in(predictions):
        if files_in(method, MAP_SUFFIXES):
            comparisons.append((method.name, dataset_name(masks), method, masks))
            continue
        for dataset in folders_in(method):
            truth = masks / dataset.name
            if not is_folder(truth):
                missing = f"no folder {dataset.name}{subfolder_hint(masks)}"
                expected = f"the masks for {dataset}, because two levels of folders are read as METHOD/DATASET/"
                raise InputError(masks, missing, expected)
            comparisons.append((method.name, dataset.name, dataset, truth))
    if not comparisons:
        raise InputError(predictions, "no prediction maps", "maps, METHOD/ folders or METHOD/DATASET/ folders")
    return comparisons


def check_folder(folder: Path, expected: str) -> None:
    """Raise an InputError if a folder is missing, or is a file."""
    if exists(folder) and not is_folder(folder):
        raise InputError(folder, "a file", f"{expected}: unpack an archive, put a single file into a folder")
    if not is_folder(folder):
        raise InputError(folder, "no such folder", expected)


def dataset_name(masks: Path) -> str:
    """Return the name of the mask folder, or that of its parent if the folder has a generic name such as `masks`."""
    folder = masks.resolve()
    generic = {"masks", "mask", "gt", "gts", "labels", "ground_truth", "groundtruth", "annotations"}
    return folder.parent.name if folder.name.lower() in generic and folder.parent.name else folder.name


def _by_stem(folder: Path, suffixes: tuple[str, ...], what: str) -> dict[str, Path]:
    check_folder(folder, f"a folder of {what}s")
    paths: dict[str, Path] = {}
    for path in files_in(folder, suffixes):
        if path.stem in paths:
            raise InputError(path, f"the same stem as {paths[path.stem].name}", f"one {what} per stem")
        paths[path.stem] = path
    if not paths:
        raise InputError(folder, f"no {what}{subfolder_hint(folder)}", f"files ending in {' '.join(suffixes)}")
    return paths
