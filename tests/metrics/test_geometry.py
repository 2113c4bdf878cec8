"""Distances agree with scipy's transform wherever they claim to be exact, and ties are broken alike."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy.ndimage import binary_dilation, distance_transform_edt

from densecal.metrics.geometry import MAX_LIMIT, boundary_distance_squared, distance_squared, nearest_sources

shapes = st.tuples(st.integers(1, 22), st.integers(1, 22))
masks = st.tuples(shapes, st.sampled_from([0.02, 0.1, 0.5, 0.9, 1.0]), st.integers(0, 2**32 - 1)).map(
    lambda draw: np.random.default_rng(draw[2]).random(draw[0]) < draw[1]
)


def edt_squared(sources: NDArray[np.bool_]) -> NDArray[np.float64]:
    if not sources.any():
        return np.full(sources.shape, np.inf)
    return np.round(distance_transform_edt(~sources) ** 2)


def boundary_reference(labels: NDArray[Any], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    result = np.full(labels.shape, np.inf)
    for y, x in np.argwhere(valid):
        others = np.argwhere(valid & (labels != labels[y, x]))
        if len(others):
            result[y, x] = ((others - (y, x)) ** 2).sum(axis=1).min()
    return result


def assert_exact_up_to(limit: int, actual: NDArray[np.uint16], expected: NDArray[np.float64]) -> None:
    near = expected <= limit * limit
    np.testing.assert_array_equal(actual[near], expected[near])
    assert (actual[~near] > limit * limit).all()


@given(masks, st.integers(1, 14))
@settings(max_examples=300, deadline=None)
def test_distance_is_exact_up_to_the_limit(sources: NDArray[np.bool_], limit: int) -> None:
    assert_exact_up_to(limit, distance_squared(sources, limit), edt_squared(sources))


@pytest.mark.parametrize("shape", [(1, 500), (500, 1), (3, 400), (260, 240)])
@pytest.mark.parametrize("limit", [100, MAX_LIMIT])
def test_long_distances_stay_within_sixteen_bits(shape: tuple[int, int], limit: int) -> None:
    sources = np.zeros(shape, dtype=bool)
    sources[0, 0] = sources[shape[0] // 3, shape[1] // 4] = True
    assert_exact_up_to(limit, distance_squared(sources, limit), edt_squared(sources))


@given(arrays(np.uint8, shapes, elements=st.integers(0, 3)), st.integers(1, 9))
@settings(max_examples=100, deadline=None)
def test_boundary_distance_of_many_labels(labels: NDArray[np.uint8], limit: int) -> None:
    expected = boundary_reference(labels, np.ones(labels.shape, dtype=bool))
    assert_exact_up_to(limit, boundary_distance_squared(labels, limit), expected)


@given(masks, masks, st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_void_pixels_bound_nothing_and_have_no_band(
    labels: NDArray[np.bool_], valid: NDArray[np.bool_], limit: int
) -> None:
    shape = tuple(min(a, b) for a, b in zip(labels.shape, valid.shape, strict=True))
    labels, valid = labels[: shape[0], : shape[1]], valid[: shape[0], : shape[1]]
    expected = boundary_reference(labels, valid)
    assert_exact_up_to(limit, boundary_distance_squared(labels, limit, valid), expected)
    numbered = np.where(valid, labels, 255).astype(np.uint8)
    assert_exact_up_to(limit, boundary_distance_squared(numbered, limit, valid), expected)
    signed = np.where(valid, labels, -100)
    assert_exact_up_to(limit, boundary_distance_squared(signed, limit, valid), expected)


def test_boundary_distance_of_a_large_mask() -> None:
    y, x = np.mgrid[:300, :400]
    mask = ((y - 140) / 70) ** 2 + ((x - 230) / 110) ** 2 < 1 + 0.3 * np.sin(x / 9)
    expected = np.maximum(edt_squared(mask), edt_squared(~mask))
    assert_exact_up_to(15, boundary_distance_squared(mask, 15), expected)


@pytest.mark.parametrize("value", [False, True])
def test_an_image_of_one_class_has_no_band(value: bool) -> None:
    labels = np.full((9, 12), value)
    assert (boundary_distance_squared(labels, 15) > 225).all()
    assert (boundary_distance_squared(labels.astype(np.int64) + 3, 15) > 225).all()


def test_an_image_without_valid_pixels_has_no_band() -> None:
    labels = np.arange(12).reshape(3, 4) % 2 == 0
    assert (boundary_distance_squared(labels, 2, np.zeros((3, 4), dtype=bool)) > 4).all()


def test_band_of_the_specification(vectors: dict[str, dict[str, Any]]) -> None:
    case = vectors["boundary_ece"]
    bands = [boundary_distance_squared(np.array(y) == 1, 1) <= 1 for y in case["inputs"]["y"]]
    np.testing.assert_array_equal(bands[0], case["expected"]["band_map_1"])
    assert sum(int(band.sum()) for band in bands) == case["expected"]["n_band"]


@given(masks, st.integers(1, 5))
@settings(max_examples=300, deadline=None)
def test_the_nearest_pixel_is_scipys_even_with_ties(sources: NDArray[np.bool_], reach: int) -> None:
    pixels, nearest = nearest_sources(sources, reach)
    window = np.ones((2 * reach + 1, 2 * reach + 1))
    near = np.flatnonzero(binary_dilation(sources, window) & ~sources)
    assert np.isin(near, pixels).all()
    assert not sources.ravel()[pixels].any()
    if sources.any():
        row, column = distance_transform_edt(~sources, return_distances=False, return_indices=True)
        np.testing.assert_array_equal(nearest, (row * sources.shape[1] + column).ravel()[pixels])


@pytest.mark.parametrize("limit", [0, MAX_LIMIT + 1])
def test_limits_out_of_range_are_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        boundary_distance_squared(np.zeros((3, 3), dtype=bool), limit)


def test_arrays_that_are_not_label_maps_are_refused() -> None:
    with pytest.raises(ValueError, match="labels"):
        boundary_distance_squared(np.zeros(3, dtype=bool), 2)
    with pytest.raises(TypeError, match="labels"):
        boundary_distance_squared(np.zeros((3, 3)), 2)
    with pytest.raises(ValueError, match="valid"):
        boundary_distance_squared(np.zeros((3, 3), dtype=bool), 2, np.ones((3, 2), dtype=bool))
