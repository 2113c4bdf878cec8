"""The meaning of the axes of a stored map: classes first, then space as (H, W) or (D, H, W)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.geometry import Frame, Geometry
from densecal.io.map_options import MapOptions
from densecal.io.readers.protocol import LazyArray, Window

Array = NDArray[Any]
EVERYTHING = slice(None)


@dataclass(frozen=True)
class Axes:
    """The mapping from the axes of a stored array to those of a map.

    Attributes:
        order: The axes of the stored array that are kept, classes first if there are several; the others have
            length 1.
        shape: Lengths of the spatial axes.
        classes: Whether the first axis holds the classes.
        stored: Number of axes of the stored array.
    """

    order: tuple[int, ...]
    shape: tuple[int, ...]
    classes: bool
    stored: int

    def read(self, array: LazyArray, rows: slice = EVERYTHING, channel: int | None = None) -> Array:
        """Read the map, or a slab of its first spatial axis, for all channels or for one, (space)."""
        window, single = self._window(rows, channel)
        return self._select(self._arrange(array.read(window)), channel, single)

    def read_with_void(
        self, array: LazyArray, rows: slice = EVERYTHING, channel: int | None = None
    ) -> tuple[Array, NDArray[np.bool_] | None]:
        """Read the map, or a slab, and which of its pixels have no data, (space).

        The value for no data may also be that of a class, such as 0. Then only pixels where all classes have it have no
        data.
        """
        values, (window, single) = self.read(array, rows, channel), self._window(rows, channel)
        given = array.read_void(window)
        if given is None:
            return values, None
        void: NDArray[np.bool_] = self._select(self._arrange(given), channel, single)
        if self.classes and channel is None:
            void = np.asarray(void.all(axis=0) | (void & ~(values >= 0)).any(axis=0))
        return values, void

    def geometry(self, array: LazyArray) -> Geometry | None:
        """Return where the pixels lie, in the order of the axes of the map."""
        geometry = array.geometry
        if geometry is None:
            return None
        of_space = [axis for axis in range(self.stored) if axis != array.channels]
        kept = [of_space.index(axis) for axis in self.order[self.classes :]]
        return Geometry(geometry.steps[kept], geometry.origin, geometry.system)

    def _window(self, rows: slice, channel: int | None) -> tuple[Window, bool]:
        """Return the part of the array to read, and whether it holds only the channel."""
        first = self.order[self.classes]
        window = [EVERYTHING] * first + [rows]
        single = self.classes and channel is not None and self.order[0] < first
        if single and channel is not None:
            window[self.order[0]] = slice(channel, channel + 1)
        return tuple(window), single

    def _select(self, array: Array, channel: int | None, single: bool) -> Array:
        if channel is None or not self.classes:
            return array
        return np.asarray(array[0 if single else channel])

    def _arrange(self, array: Array) -> Array:
        left_out = [axis for axis in range(self.stored) if axis not in self.order]
        return np.asarray(np.transpose(array, (*left_out, *self.order))[(0,) * len(left_out)])


def find_axes(stored: LazyArray, name: str, classes: int | None, options: MapOptions, space: int | None = None) -> Axes:
    """Determine which axes of a stored array are those of a map.

    Args:
        stored: The array.
        name: Name of the file in error messages.
        classes: Number of classes; ``None`` or 1 for a foreground map.
        options: How the map is stored.
        space: Number of spatial axes, 2 or 3, if the mask determines it.

    Raises:
        InputError: The shape is not that of a map.
    """
    shape, several = stored.shape, classes not in (None, 1)
    if space is None:
        space = _axes_of_space(stored, several, options)
    class_axis = _class_axis(stored, several, space, options)
    kept = [axis for axis in range(len(shape)) if axis != class_axis]
    # axes of length 1 in front: a batch of one image, one channel, one slice
    while len(kept) > space and shape[kept[0]] == 1:
        kept.pop(0)
    wanted = classes if several else 1
    if len(kept) != space or (shape[class_axis] if class_axis is not None else 1) != wanted:
        actual = f"an array of shape {shape}" if stored.channels is None else f"{shape[stored.channels]} bands or pages"
        raise InputError(name, actual, _expected_shape(stored, classes, space, options))
    lengths = tuple(shape[axis] for axis in kept)
    if options.axes == "xyz" and space == 3 and stored.geometry is None:
        kept, lengths = kept[::-1], lengths[::-1]
    order = (class_axis, *kept) if several and class_axis is not None else tuple(kept)
    return Axes(order, lengths, several, len(shape))


def check_order(name: str, frame: Frame, other: Frame, options: MapOptions) -> None:
    """Refuse a cube whose axes may be (Z, Y, X) or (X, Y, Z): its format does not specify them, that of the other does.

    Args:
        name: Name of the file in error messages.
        frame: Grid of the file.
        other: Grid of the other file of the pair.
        options: How maps are stored.
    """
    unknown = frame.geometry is None and other.geometry is not None and len(frame.shape) == 3
    if unknown and options.axes is None and frame.shape == frame.shape[::-1]:
        expected = "--axes zyx (arrays of SimpleITK and nnU-Net) or --axes xyz (of nibabel and MONAI)"
        raise InputError(name, f"a volume of shape {frame.shape}, whose axes may be (Z, Y, X) or (X, Y, Z)", expected)


def _axes_of_space(stored: LazyArray, several: bool, options: MapOptions) -> int:
    """Return the number of spatial axes of an array, where no mask determines it."""
    if stored.geometry is not None:
        return len(stored.geometry.steps)
    if options.axes is not None:
        return 3
    known = len(stored.shape) - (stored.channels is not None)
    return 3 if stored.channels is None and several and known >= 4 and stored.shape[0] != 1 else 2


def _class_axis(stored: LazyArray, several: bool, space: int, options: MapOptions) -> int | None:
    """Return the axis of classes, or ``None`` for an array without one."""
    if stored.channels is not None:
        return stored.channels
    axes = len(stored.shape)
    if options.channels_last and axes > space:
        return axes - 1
    if not several:
        return None
    leading = 0
    while axes - leading > space + 1 and stored.shape[leading] == 1:
        leading += 1
    return leading if axes > space else None


def _expected_shape(stored: LazyArray, classes: int | None, space: int, options: MapOptions) -> str:
    """Describe the expected shape, and the options that a map of another shape may need."""
    shape, several = stored.shape, classes not in (None, 1)
    if stored.channels is not None:
        bands = shape[stored.channels]
        return f"one band, or --classes {bands} for one band per class" if not several else f"{classes} bands or pages"
    names = "H, W" if space == 2 else "D, H, W"
    expected = f"shape ({classes}, {names}), one probability per class" if several else f"shape ({names})"
    while len(shape) > space + 1 and shape[0] == 1:  # a batch of one image
        shape = shape[1:]
    if len(shape) != space + 1:
        return expected
    if not several and shape[0] == min(shape):
        return f"{expected}, or --classes {shape[0]}"
    if not options.channels_last and shape[-1] == (classes if several else min(shape)):
        return f"{expected}, or --channels-last" + (f" --classes {shape[-1]}" if not several and shape[-1] > 1 else "")
    return expected
