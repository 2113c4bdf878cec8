"""Distances in volumes, in millimetres: boundary bands, HD95 and the surface Dice.

A surface is the set of voxels of an object with a neighbour, of six, outside it; beyond the volume everything is
outside. Distances are those between centres of voxels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy  # loads scipy.ndimage when it is used
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Floats = NDArray[np.float64]

_ROUNDING = 1e-9
"""Distances that should equal a limit may exceed it by this share."""


def volume_zones(
    labels: NDArray[Any], valid: Mask | None, spacing: Sequence[float] | None, distances: Sequence[float]
) -> NDArray[np.uint8]:
    """Return how many of the distances lie below that of every voxel to the nearest voxel of another class.

    Args:
        labels: (D, H, W) classes.
        valid: (D, H, W) False on void voxels, which bound no class and are in the last zone.
        spacing: Distance of voxels along every axis; 1 unless given.
        distances: Rising limits, which belong to the zone below.
    """
    steps = _steps(spacing, labels.ndim)
    counted = labels if valid is None else labels[valid]
    zones = np.full(labels.shape, len(distances), np.uint8)
    for label in np.unique(counted).tolist():
        inside = labels == label
        box = _box(inside, steps, distances[-1])
        own = inside[box]
        # a void voxel is no voxel of another class
        others = ~own if valid is None else ~own & valid[box]
        if not others.any():
            continue
        apart = scipy.ndimage.distance_transform_edt(~others, sampling=steps)[own]
        zones[box][own] = np.searchsorted(np.asarray(distances) * (1 + _ROUNDING), apart, side="left")
    if valid is not None:
        zones[~valid] = len(distances)
    return zones


def surface_scores(
    predicted: Mask, truth: Mask, spacing: Sequence[float] | None, tolerance: float
) -> tuple[float, float]:
    """Return the 95th percentile of the Hausdorff distance, and the surface Dice at a tolerance.

    HD95 is the larger of the 95th percentiles of the distances from either surface to the other. The surface Dice
    (Nikolov et al., 2021) is the share of the voxels of both surfaces within the tolerance of the other surface.
    Both are NaN where both objects are empty. Where one is, HD95 is infinite and the surface Dice 0.

    Args:
        predicted: (D, H, W) or (H, W).
        truth: The same shape.
        spacing: Distance of voxels along every axis; 1 unless given.
        tolerance: Distance that counts as close, in the unit of the spacing.
    """
    if not predicted.any() and not truth.any():
        return math.nan, math.nan
    if not predicted.any() or not truth.any():
        return math.inf, 0.0
    steps = _steps(spacing, truth.ndim)
    box = _box(predicted | truth, steps, 0.0)
    one, other = surface(predicted[box]), surface(truth[box])
    to_truth = scipy.ndimage.distance_transform_edt(~other, sampling=steps)[one]
    to_predicted = scipy.ndimage.distance_transform_edt(~one, sampling=steps)[other]
    limit = tolerance * (1 + _ROUNDING)
    close = np.count_nonzero(to_truth <= limit) + np.count_nonzero(to_predicted <= limit)
    farthest = max(float(np.percentile(to_truth, 95)), float(np.percentile(to_predicted, 95)))
    return farthest, close / (len(to_truth) + len(to_predicted))


def surface(inside: Mask) -> Mask:
    """Return the voxels of an object that have a neighbour outside it."""
    neighbours = scipy.ndimage.generate_binary_structure(inside.ndim, 1)
    return np.asarray(inside & ~scipy.ndimage.binary_erosion(inside, neighbours))


def _box(inside: Mask, steps: Sequence[float], margin: float) -> tuple[slice, ...]:
    """Return the box around an object, widened by a distance."""
    box = []
    for axis, step in enumerate(steps):
        others = tuple(other for other in range(inside.ndim) if other != axis)
        occupied = np.flatnonzero(inside.any(axis=others))
        wider = math.ceil(margin / step) + 1
        box.append(slice(max(int(occupied[0]) - wider, 0), int(occupied[-1]) + 1 + wider))
    return tuple(box)


def _steps(spacing: Sequence[float] | None, axes: int) -> tuple[float, ...]:
    return (1.0,) * axes if spacing is None else tuple(spacing)
