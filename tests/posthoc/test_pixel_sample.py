"""The sample of pixels: uniform, bounded, and the same whatever the batches."""

import numpy as np
import pytest

from densecal.errors import InputError
from densecal.posthoc import pixel_sample
from densecal.posthoc.pixel_sample import PixelSample, draw_sample, pixel_keys

from .common import class_batches


def test_small_data_is_kept_whole():
    sample = draw_sample(lambda: class_batches(void=True), 4, 255)
    masks = np.concatenate([np.asarray(batch.masks).ravel() for batch in class_batches(void=True)])
    assert len(sample.labels) == (masks != 255).sum()
    np.testing.assert_array_equal(sample.class_counts, np.bincount(masks[masks != 255], minlength=4))
    np.testing.assert_array_equal(np.bincount(sample.labels, minlength=4), sample.class_counts)
    np.testing.assert_allclose(np.exp(sample.log_p.astype(float)).sum(1), 1.0, atol=1e-6)


def test_batches_and_chunks_do_not_matter(monkeypatch):
    batches = class_batches(images=4)
    whole = PixelSample(4, limit=100)
    for batch in batches:
        whole.update(batch.logits, batch.masks)
    monkeypatch.setattr(pixel_sample, "_CHUNK", 7)
    parts = PixelSample(4, limit=100)
    for batch in batches:
        for i in range(2):
            parts.update(batch.logits[i : i + 1], batch.masks[i : i + 1])
            assert parts._kept <= 200
    assert len(parts.labels) == 100
    np.testing.assert_array_equal(parts.log_p, whole.log_p)
    np.testing.assert_array_equal(parts.labels, whole.labels)


def test_it_is_uniform_and_its_beginning_is_too():
    """Every tenth of the pixels has its share of the sample, within four standard errors."""
    sample = PixelSample(2, limit=20_000)
    for image in range(10):
        sample.update(np.zeros((1, 2, 100, 200)), np.full((1, 100, 200), image % 2), image=image)
    for images in (sample.images, sample.images[:5000]):
        share = np.bincount(images, minlength=10) / len(images)
        assert np.abs(share - 0.1).max() < 4 * np.sqrt(0.09 / len(images))


def test_keys_are_distinct():
    assert np.unique(pixel_keys(0, 100_000)).size == 100_000
    np.testing.assert_array_equal(pixel_keys(50, 20), pixel_keys(0, 100)[50:70])


def test_a_part_has_the_pixels_of_its_images():
    sample = PixelSample(3)
    for image in range(4):
        sample.update(np.full((1, 3, 2, 2), float(image)), np.full((1, 2, 2), image % 3), image=image)
    part = sample.select(sample.images >= 2)
    assert sorted(part.labels.tolist()) == [0, 0, 0, 0, 2, 2, 2, 2]
    assert part.class_counts.tolist() == [4, 0, 4]
    assert sum(batch.masks.size for batch in part()) == 8


@pytest.mark.parametrize(
    ("z", "y", "error", "message"),
    [
        (np.zeros((1, 3, 2, 2)), np.full((1, 2, 2), 3), InputError, "labels from 3 to 3"),
        (np.full((1, 3, 2, 2), np.nan), np.zeros((1, 2, 2)), InputError, "NaN or infinite"),
        (np.zeros((1, 2, 2, 2)), np.zeros((1, 2, 2)), ValueError, "expected shapes"),
    ],
)
def test_what_is_no_sample_is_refused(z, y, error, message):
    with pytest.raises(error, match=message):
        PixelSample(3).update(z, y, 255)
