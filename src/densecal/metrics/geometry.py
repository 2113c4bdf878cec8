"""Distances in the pixel grid: to the nearest boundary and to the nearest object, and which pixel is the nearest."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from densecal.metrics import compiled

Mask = NDArray[np.bool_]

MAX_LIMIT = 180
"""The largest distance d for which d**2 + (d + 1)**2 fits into 16 bits."""


def boundary_distance_squared(
    labels: Mask | NDArray[np.integer],
    limit: int,
    valid: Mask | None = None,
) -> NDArray[np.uint16]:
    """Return the squared Euclidean distance of every pixel to the nearest valid pixel with another label.

    Args:
        labels: (H, W) class map, boolean or integer.
        limit: Largest distance of interest in pixels, 1 to 180.
        valid: (H, W) False on void pixels. A void pixel bounds no class, and its own value is above ``limit**2``.

    Returns:
        (H, W) squared distances, exact up to ``limit**2`` and larger than that elsewhere. The band of width d is
        ``result <= d * d``.
    """
    _check_map(labels, "labels")
    _check_limit(limit)
    if valid is not None and (valid.shape != labels.shape or valid.dtype != bool):
        raise ValueError(f"valid: found {valid.dtype} of shape {valid.shape}; expected bool of shape {labels.shape}")
    result = np.zeros(labels.shape, dtype=np.uint16)
    for label in _labels_present(labels if valid is None else labels[valid]):
        inside = labels == label
        # Distances are wanted for this class only, so nothing farther than `limit` from its bounding box matters.
        window = bounding_window(inside, margin=limit)
        outside = ~inside[window] if valid is None else ~inside[window] & valid[window]
        distance = distance_squared(outside, limit)
        # Every class but its own gives a valid pixel the distance 0, so the maximum is that of its own class.
        np.maximum(result[window], distance, out=result[window])
    if valid is not None:
        result[~valid] = (limit + 1) ** 2
    return result


def distance_squared(sources: Mask, limit: int) -> NDArray[np.uint16]:
    """Return the squared Euclidean distance of every pixel to the nearest True pixel.

    Two passes, as in Saito and Toriwaki (1994): distances g along one axis, then the minimum of g**2 + shift**2 along
    the other. Every step is one 16-bit operation on whole rows, which is faster than a scan pixel by pixel.

    Args:
        sources: (H, W) boolean map.
        limit: Largest distance of interest in pixels, 1 to 180.

    Returns:
        (H, W) squared distances, exact up to ``limit**2`` and ``limit**2 + 1`` elsewhere.
    """
    _check_map(sources, "sources")
    _check_limit(limit)
    height, width = sources.shape
    beyond = np.uint16(limit * limit + 1)
    if compiled.takes_pictures(sources):
        result = np.empty((height, width), np.uint16)
        compiled.native.distance_squared(sources, result, height, width, limit)
        return result
    if not sources.any():
        return np.full((height, width), beyond)
    rows, columns = bounding_window(sources, margin=0)
    # The second pass shifts the rows that hold sources, or the columns if transposed: the smaller block is cheaper.
    if (columns.stop - columns.start) * height < (rows.stop - rows.start) * width:
        distance = _shifted_minimum(np.ascontiguousarray(sources.T), columns, limit).T
    else:
        distance = _shifted_minimum(sources, rows, limit)
    return np.minimum(distance, beyond, order="C")


def _shifted_minimum(sources: Mask, rows: slice, limit: int) -> NDArray[np.uint16]:
    """Second pass: return the minimum over dy of dy**2 + g(y + dy)**2, where only ``rows`` hold sources."""
    first, last = rows.start, rows.stop
    height, width = sources.shape
    # `far` keeps the sum of a squared distance and a squared shift within 16 bits.
    far = min(2 * limit, math.isqrt(65535 - limit * limit))
    g = _distance_along_columns(np.ascontiguousarray(sources[first:last].T), far)
    # In flat arrays, blocks of rows are plain slices, which NumPy handles fastest.
    shifted = (g * g).T.ravel()
    nearest = np.full(height * width, far * far, dtype=np.uint16)
    nearest[first * width : last * width] = shifted
    for dy in range(1, min(limit, height - 1) + 1):
        # This check costs as much as a step, so it is not made at every step.
        if dy % 16 == 0 and int(nearest.max()) <= dy * dy:
            break
        shifted += np.uint16(2 * dy - 1)
        top, bottom = max(first - dy, 0), last - dy
        if top < bottom:
            part = nearest[top * width : bottom * width]
            np.minimum(part, shifted[(top + dy - first) * width :], out=part)
        top, bottom = first + dy, min(last + dy, height)
        if top < bottom:
            part = nearest[top * width : bottom * width]
            np.minimum(part, shifted[: part.size], out=part)
    return nearest.reshape(height, width)


def _distance_along_columns(sources: Mask, far: int) -> NDArray[np.uint16]:
    """First pass: return the distance to the nearest source of the same column, at most ``far``.

    Steps of 1, 2, 4, ... in both directions reach every distance up to ``far``.
    """
    distance = np.multiply(~sources, np.uint16(far), dtype=np.uint16)
    step = 1
    while step < min(far, len(distance)):
        farther = distance + np.uint16(step)
        np.minimum(distance[step:], farther[:-step], out=distance[step:])
        np.minimum(distance[:-step], farther[step:], out=distance[:-step])
        step *= 2
    return distance


def nearest_sources(sources: Mask, reach: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the nearest True pixel of every False pixel close to one.

    Of several equally near pixels it is the one with the lowest column, then the lowest row, as in
    ``scipy.ndimage.distance_transform_edt``.

    Args:
        sources: (H, W) boolean map.
        reach: Half width of a square window, 1 to 7: every False pixel with a True pixel in its window is listed.

    Returns:
        Flat indices of the False pixels, and those of their nearest True pixels.
    """
    height, width = sources.shape
    # A source in the corner of the window is sqrt(2) * reach away; a nearer one may lie outside the window.
    span = math.isqrt(2 * reach * reach)
    side = 2 * span + 1
    # One integer holds (squared distance, column step, row step), so that the minimum also breaks ties.
    unit = side * side
    far = np.uint16((2 * reach * reach + 1) * unit)
    padded = np.full((height + 2 * span, width + 2 * span), far, dtype=np.uint16)
    padded[span : span + height, span : span + width] *= ~sources
    column = np.full((height, width + 2 * span), far, dtype=np.uint16)
    candidate = np.empty_like(column)
    for dy in range(-span, span + 1):
        np.add(padded[span + dy : span + dy + height], np.uint16(dy * dy * unit + dy + span), out=candidate)
        np.minimum(column, candidate, out=column)
    # The padding between rows is as wide as the largest step, so rows do not mix in the flat arrays.
    best = np.full_like(column, far)
    inner = best.ravel()[span : best.size - span]
    flat, candidate = column.ravel(), candidate.ravel()[: inner.size]
    for dx in range(-span, span + 1):
        shifted = flat[span + dx : span + dx + inner.size]
        np.add(shifted, np.uint16(dx * dx * unit + (dx + span) * side), out=candidate)
        np.minimum(inner, candidate, out=inner)
    key = best[:, span : span + width].ravel()
    indices = np.flatnonzero((key >= unit) & (key < far))
    column_step, row_step = np.divmod(key[indices].astype(np.intp) % unit, side)
    return indices, indices + (row_step - span) * width + (column_step - span)


def bounding_window(mask: Mask, margin: int) -> tuple[slice, slice]:
    """Return the bounding box of the True pixels (at least one) as slices, widened by ``margin``."""
    window = []
    for axis in (0, 1):
        occupied = np.flatnonzero(mask.any(axis=1 - axis))
        window.append(slice(max(int(occupied[0]) - margin, 0), int(occupied[-1]) + 1 + margin))
    return window[0], window[1]


def _labels_present(labels: Mask | NDArray[np.integer]) -> list[int]:
    if labels.dtype == bool or labels.size == 0:
        return [label for label in (False, True) if (labels == label).any()]
    low = int(labels.min())
    return [low + int(step) for step in np.flatnonzero(np.bincount(labels.ravel().astype(np.intp) - low))]


def _check_map(values: NDArray[np.generic], name: str) -> None:
    if values.ndim != 2 or values.size == 0:
        raise ValueError(f"{name}: found shape {values.shape}; expected (height, width), both above 0")
    if values.dtype != bool and not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"{name}: found {values.dtype}; expected bool or integers")


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= MAX_LIMIT:
        raise ValueError(f"limit: found {limit}; expected 1 to {MAX_LIMIT}")
