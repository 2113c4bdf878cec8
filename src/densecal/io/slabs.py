"""A large map and its mask, read slab by slab: files larger than memory, in formats that can be read in parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from densecal.io.axes import Axes, check_order, find_axes
from densecal.io.geometry import Frame, check_geometry
from densecal.io.map_files import fill_void
from densecal.io.map_options import MapOptions
from densecal.io.map_values import check_values, to_probabilities
from densecal.io.masks import axes_of_space, check_labels, has_reader, to_levels
from densecal.io.pairs import Array, Pair, space_between
from densecal.io.readers.protocol import LazyArray
from densecal.io.readers.registry import find_reader
from densecal.io.readers.stored import StoredArray
from densecal.io.readers.tiff import GreyTiff, TiffArray

LARGE = 1 << 25
"""Number of values from which a map is read in slabs, if its format allows that."""
_SLAB = 1 << 22
_WHOLE = (StoredArray, TiffArray, GreyTiff)
"""Arrays that are always read as a whole, whichever part is requested."""

Levels = NDArray[np.uint8]
Void = NDArray[np.bool_] | None


@dataclass
class LargePair:
    """An open map and its open mask, which have the same shape and position.

    ``no_data`` is the number of pixels that the files mark as having no data, once all slabs were read.
    """

    pair: Pair
    classes: int | None
    options: MapOptions
    prediction: tuple[LazyArray, Axes]
    mask: tuple[LazyArray, Axes]
    spacing: tuple[float, ...] | None
    no_data: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the spatial axes."""
        return self.mask[1].shape

    @property
    def is_float(self) -> bool:
        """Whether the map holds probabilities as floats, and not 8- or 16-bit levels."""
        kind = self.prediction[0].dtype.newbyteorder("=")
        whole_range = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}.get(kind)
        return whole_range is None or self.options.max_value not in (None, whole_range)

    @property
    def is_georeferenced(self) -> bool:
        """Whether the mask's file says where its pixels lie."""
        return self.mask[0].geometry is not None

    def masks(self) -> Iterator[tuple[Levels, Void]]:
        """Yield the levels or labels of every slab, and which pixels have no data."""
        array, axes = self.mask
        for rows in self._rows():
            yield to_levels(*axes.read_with_void(array, rows), str(self.pair.mask))

    def slabs(self) -> Iterator[tuple[Array, Levels, Void]]:
        """Yield probabilities or levels, levels or labels of the mask, and which pixels have no data in either."""
        array, axes = self.prediction
        several, count = self.classes not in (None, 1), 0
        for rows, (levels, void) in zip(self._rows(), self.masks(), strict=True):
            values, missing = axes.read_with_void(array, rows)
            if missing is not None and missing.any():
                values = fill_void(values, missing)
                void = missing if void is None else void | missing
            count += 0 if void is None else int(np.count_nonzero(void))
            values = check_values(values, str(self.pair.prediction), self.options, several)
            yield to_probabilities(values, several) if self.options.logits else values, levels, void
        self.no_data = count

    def labels(self, void_label: int) -> Iterator[tuple[Array, Levels]]:
        """Yield probabilities (K, slab) and class indices; void pixels have the label of void."""
        assert self.classes is not None
        for p, labels, void in self.slabs():
            check_labels(labels, str(self.pair.mask), self.classes, void_label)
            yield p, labels if void is None else np.where(void, np.uint8(void_label), labels)

    def _rows(self) -> Iterator[slice]:
        step = max(1, _SLAB // ((self.classes or 1) * math.prod(self.shape[1:])))
        return (slice(first, min(first + step, self.shape[0])) for first in range(0, self.shape[0], step))


@contextmanager
def open_large(pair: Pair, classes: int | None, max_pixels: int, options: MapOptions) -> Iterator[LargePair | None]:
    """Open a map and its mask if they are large and can be read in slabs; yield ``None`` for all others.

    Args:
        pair: The files.
        classes: K for maps of K classes.
        max_pixels: Refuse larger files.
        options: How the map is stored.
    """
    read_map = find_reader(pair.prediction)
    special = len(pair.files) > 1 or any((options.channel, options.relabel, options.rater))
    if pair.mask is None or read_map is None or not has_reader(pair.mask) or special:
        yield None
        return
    read_mask = find_reader(pair.mask)
    assert read_mask is not None
    truth_name, name = str(pair.mask), str(pair.prediction)
    with read_mask(pair.mask, None, max_pixels) as truth:
        axes = find_axes(truth, truth_name, None, MapOptions(axes=options.axes), axes_of_space(truth, False))
        if math.prod(axes.shape) * (classes or 1) <= LARGE or isinstance(truth, _WHOLE):
            yield None
            return
        with read_map(pair.prediction, options.key, max_pixels * (classes or 1)) as stored:
            map_axes = find_axes(stored, name, classes, options, len(axes.shape))
            if map_axes.shape != axes.shape or isinstance(stored, _WHOLE):
                yield None
                return
            frames = Frame(map_axes.shape, map_axes.geometry(stored)), Frame(axes.shape, axes.geometry(truth))
            check_order(name, *frames, options)
            check_order(truth_name, *frames[::-1], options)
            check_geometry(name, frames[0].geometry, frames[1].geometry, axes.shape)
            spacing = space_between(frames[1].geometry or frames[0].geometry, len(axes.shape))
            yield LargePair(pair, classes, options, (stored, map_axes), (truth, axes), spacing)
