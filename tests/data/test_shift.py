"""Corrupted images: the same every time, worse with severity, and what their definitions say."""

import io

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from densecal.data.scenes import generate
from densecal.data.shift import KINDS, SEVERITIES, STRENGTHS, shifted
from densecal.evaluation.model import ImageSet, evaluate_model
from densecal.evaluation.shift import shift_evaluations, shifted_set

SCENES = generate(4, 48, seed=5)


@pytest.fixture
def image():
    smooth = gaussian_filter(np.random.default_rng(0).normal(size=(120, 150, 3)), (1, 1, 0))
    return np.clip(128 + 200 * smooth, 0, 255).astype(np.uint8)


def image_set(n=4):
    masks = [mask // 255 for mask in SCENES.masks[:n]]
    return ImageSet("scenes", [f"{i}" for i in range(n)], SCENES.images[:n], masks)


def brightness_model(images):
    """Foreground is what is brighter than the middle."""
    return 12 * (images.mean(dim=1, keepdim=True) - 0.5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("severity", SEVERITIES)
def test_shape_and_type_stay_and_the_input_is_left_alone(image, kind, severity):
    before = image.copy()
    found = shifted(image, kind, severity, seed=3, name="a")
    assert found.shape == image.shape
    assert found.dtype == np.uint8
    assert not np.shares_memory(found, image)
    np.testing.assert_array_equal(image, before)
    np.testing.assert_array_equal(found, shifted(image, kind, severity, seed=3, name="a"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_severity_is_further_from_the_image_than_the_one_before(image, kind):
    distances = [np.mean((shifted(image, kind, s).astype(float) - image) ** 2) for s in SEVERITIES]
    assert all(np.diff([0.0, *distances]) > 0)


def test_noise_has_the_stated_deviation_and_follows_seed_and_name():
    grey = np.full((200, 200, 3), 128, np.uint8)
    for severity, strength in zip((1, 2), STRENGTHS["noise"][:2], strict=True):
        noise = shifted(grey, "noise", severity, name="a").astype(float) - 128
        assert noise.std() == pytest.approx(255 * strength, rel=0.02)
        assert abs(noise.mean()) < 0.5
    one, two = (shifted(grey, "noise", s, name="a").astype(float) - 128 for s in (1, 2))
    np.testing.assert_allclose(two, 2 * one, atol=1.5)  # one draw, scaled
    other = [shifted(grey, "noise", 1, seed, name) for seed, name in ((0, "a"), (0, "b"), (1, "a"))]
    assert not np.array_equal(other[0], other[1])
    assert not np.array_equal(other[0], other[2])


def test_blur_is_a_gaussian_in_the_plane_whose_width_follows_the_image(image):
    strength = STRENGTHS["blur"][4]
    for scale in (1, 2):
        large = np.asarray(Image.fromarray(image).resize((150 * scale, 120 * scale), Image.Resampling.NEAREST))
        channels = [
            gaussian_filter(large[:, :, c].astype(float), strength * 120 * scale, mode="nearest") for c in range(3)
        ]
        found = shifted(large, "blur", 5)
        assert np.abs(found - np.stack(channels, axis=2)).max() <= 0.51


def test_brightness_adds_and_contrast_shrinks_around_the_mean_colour(image):
    lighter = shifted(image, "brightness", 2).astype(float)
    expected = np.clip(np.rint(image + 255 * STRENGTHS["brightness"][1]), 0, 255)
    assert np.abs(lighter - expected).max() <= 1
    flat = shifted(image, "contrast", 5).astype(float)
    mean = image.reshape(-1, 3).mean(axis=0)
    np.testing.assert_allclose(flat, mean + 0.10 * (image - mean), atol=0.51)


def test_jpeg_is_that_of_the_stated_quality(image):
    stream = io.BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=14)
    np.testing.assert_array_equal(shifted(image, "jpeg", 3), np.asarray(Image.open(stream)))


@pytest.mark.parametrize(("kind", "severity", "named"), [("fog", 1, "kind is 'fog'"), ("blur", 6, "severity is 6")])
def test_unknown_kinds_and_severities_are_named(image, kind, severity, named):
    with pytest.raises(ValueError, match=named):
        shifted(image, kind, severity)


# ------------------------------------------------------------------ evaluating


def test_a_shifted_set_has_every_image_shifted_under_its_name():
    data = image_set()
    found = shifted_set(data, "noise", 2, seed=4)
    for i, name in enumerate(data.names):
        np.testing.assert_array_equal(found.images[i], shifted(data.images[i], "noise", 2, 4, name))
    assert found.masks is data.masks


def test_records_are_those_of_the_shifted_sets():
    data = image_set()
    calibrators = {"plain": None, "halved": lambda z, _: (z / 2).sigmoid()}
    steps = []
    found = shift_evaluations(
        brightness_model, data, calibrators, kinds=("brightness", "noise"), severities=(1, 4),
        progress=lambda _, *step: steps.append(step),
    )  # fmt: skip
    assert list(found) == ["plain", "halved"]
    assert {kind: list(records) for kind, records in found["halved"].items()} == {
        "brightness": [0, 1, 4],
        "noise": [0, 1, 4],
    }
    assert steps == [(i, 5) for i in range(1, 6)]
    for name, calibrate in calibrators.items():
        clean = evaluate_model(brightness_model, data, {name: calibrate})[name].record
        assert found[name]["noise"][0] == found[name]["brightness"][0] == clean
        noisy = evaluate_model(brightness_model, shifted_set(data, "noise", 4), {name: calibrate})[name].record
        assert found[name]["noise"][4] == noisy
    assert found["plain"]["brightness"][4].calibration["accuracy"] < clean.calibration["accuracy"]
