"""The meter at the limits of its input: shapes, void, ranges, boundaries, and bad calls."""

import numpy as np
import pytest
import torch

from densecal.metrics import CalibrationMeter, calibration_errors
from densecal.metrics.bootstrap import with_image_ece
from densecal.metrics.inputs import integer_labels
from tests.metrics import reference
from tests.metrics.test_calibration import close, make_maps, softmax_maps
from tests.metrics.test_fine_bins import OnAccelerator

BOUNDARY = ("ece_boundary_5", "ece_boundary_15")


def figures_of(meter):
    """Return every figure of a meter but the intervals, which follow from the rows."""
    return {name: value for name, value in meter.compute().as_dict().items() if name != "ci"}


def measure(p, y, **options):
    meter = CalibrationMeter(**options)
    meter.update(p, y)
    return figures_of(meter)


# ------------------------------------------------------------------ shapes and labels


@pytest.mark.parametrize("multilabel", [False, True])
@pytest.mark.parametrize(("classes", "height", "width"), [(3, 1, 3), (3, 5, 4), (5, 2, 7)])
def test_one_image_of_k_classes_may_come_without_a_batch_or_as_a_list_of_pixels(multilabel, classes, height, width):
    z, y = softmax_maps(classes, (1, height, width), seed=height)
    p = z.sigmoid() if multilabel else z.softmax(1)
    if multilabel:
        y = (torch.rand(p.shape, generator=torch.Generator().manual_seed(1)) < p).long()
    options = {"num_classes": classes, "multilabel": multilabel}
    batch = measure(p, y, **options)
    pixels = y[0].flatten(1).T if multilabel else y.flatten()
    assert measure(p[0], y[0], **options) == pytest.approx(batch, abs=1e-12, nan_ok=True)
    flat = measure(p[0].flatten(1).T, pixels, **options)
    assert all(np.isnan(flat[name]) for name in BOUNDARY)
    assert flat | {name: batch[name] for name in BOUNDARY} == pytest.approx(batch, abs=1e-12, nan_ok=True)
    if not multilabel:
        values, labels = p[0].flatten(1).T.numpy(), y.flatten().numpy()
        correct = (values.argmax(1) == labels).astype(float)
        close(flat["ece_ew"], reference.equal_width(values.max(1), correct, 10)["ece"])
        close(flat["accuracy"], correct.mean())


@pytest.mark.parametrize("shape", ["(B, K, H, W)", "(K, H, W)", "(N, K)"])
def test_void_pixels_of_k_classes_are_left_out_in_every_shape(shape):
    z, y = softmax_maps(4, (1, 6, 5))
    p = z.softmax(1)
    kept = measure(p[:, :, 2:].flatten(2)[0].T, y[:, 2:].flatten(), num_classes=4)
    y[:, :2] = 255
    if shape == "(K, H, W)":
        p, y = p[0], y[0]
    elif shape == "(N, K)":
        p, y = p[0].flatten(1).T, y.flatten()
    actual = measure(p, y, num_classes=4)
    assert {k: v for k, v in actual.items() if k not in BOUNDARY} == pytest.approx(
        {k: v for k, v in kept.items() if k not in BOUNDARY}, abs=1e-12, nan_ok=True
    )


def test_a_pixel_that_is_void_in_one_of_its_labels_is_left_out_entirely():
    rng = np.random.default_rng(0)
    p, y = rng.random((2, 3, 6, 5)), rng.integers(0, 2, (2, 3, 6, 5))
    y[0, 1, :2], y[1, 2, 4] = 9, 9
    r = calibration_errors(p, y, num_classes=3, multilabel=True, ignore_index=9)
    valid = np.repeat((y != 9).all(axis=1, keepdims=True), 3, axis=1)
    c, a = reference.top_label(p[valid], y[valid])
    assert r.pixels == valid.sum()
    close(r.ece_ew, reference.equal_width(c, a, 10)["ece"])
    close(r.brier, ((p - y) ** 2)[valid].mean())


@pytest.mark.parametrize("options", [{}, {"num_classes": 3}, {"num_classes": 3, "multilabel": True}])
def test_labels_beyond_the_classes_are_refused(options):
    shape = (1, 3, 2, 2) if options else (1, 2, 2)
    p = torch.full(shape, 1 / 3)
    top = 2 if options == {"num_classes": 3} else 1
    masks = torch.zeros((1, 2, 2) if top == 2 else shape, dtype=torch.int64)
    for bad in (top + 1, -1):
        masks.view(-1)[1] = bad
        with pytest.raises(ValueError, match=f"expected 0 to {top}"):
            CalibrationMeter(**options).update(p, masks)
        CalibrationMeter(**options, ignore_index=bad).update(p, masks)
    masks.view(-1)[1] = top
    CalibrationMeter(**options).update(p, masks)


@pytest.mark.parametrize(
    ("options", "p", "y"),
    [
        ({}, (2, 3, 4, 4), (2, 3, 4, 4)),
        ({}, (2, 3, 4, 4), (2, 4, 4)),
        ({}, (2, 1, 4, 4), (2, 3, 4, 4)),
        ({}, (2, 2, 2, 2, 2), (2, 2, 2, 2, 2)),
        ({}, (), ()),
        ({}, (0,), (0,)),
        ({}, (2, 0, 3), (2, 0, 3)),
        ({"num_classes": 3}, (2, 3, 4, 5), (2, 5, 4)),
        ({"num_classes": 3}, (2, 3, 4, 5), (1, 4, 5)),
        ({"num_classes": 3}, (2, 3, 4, 5), (2, 3, 4, 5)),
        ({"num_classes": 3}, (2, 4, 4, 5), (2, 4, 5)),
        ({"num_classes": 3}, (2, 3, 0, 5), (2, 0, 5)),
        ({"num_classes": 3}, (3, 7), (7,)),
        ({"num_classes": 3}, (7, 3), (3,)),
        ({"num_classes": 3, "multilabel": True}, (2, 3, 4, 5), (2, 4, 5)),
        ({"num_classes": 3, "multilabel": True}, (7, 3), (3, 7)),
    ],
)
def test_shapes_that_do_not_fit_are_refused(options, p, y):
    with pytest.raises(ValueError, match="expected"):
        CalibrationMeter(**options).update(torch.full(p, 0.25), torch.zeros(y, dtype=torch.int64))


# ------------------------------------------------------------------ ranges


@pytest.mark.parametrize("classes", [1, 2])
@pytest.mark.parametrize("end", [0, 1])
def test_probabilities_may_leave_their_range_by_a_millionth_and_no_more(classes, end):
    away = -1.0 if end == 0 else 1.0
    masks = torch.tensor([0, 1])
    for excess, accepted in ((0.99e-6, True), (1.01e-6, False), (5e-4, False)):
        p = torch.tensor([end + away * excess, 0.25], dtype=torch.float64)
        if classes == 2:
            p = torch.stack([1 - p, p], dim=1).clamp(max=1.0 if end == 0 else 2.0)
        meter = CalibrationMeter(num_classes=classes)
        if accepted:
            meter.update(p, masks)
            exact = measure(p.clamp(0, 1), masks, num_classes=classes)
            assert figures_of(meter) == pytest.approx(exact, nan_ok=True)
        else:
            with pytest.raises(ValueError, match=r"outside \[0, 1\]"):
                meter.update(p, masks)


def test_void_pixels_may_hold_anything_but_valid_ones_beside_them_may_not():
    p = torch.tensor([[0.2, 7.0], [float("nan"), 0.9]])
    masks = torch.tensor([[0, 9], [9, 1]])
    assert calibration_errors(p, masks, ignore_index=9).pixels == 2
    with pytest.raises(ValueError, match="outside"):
        calibration_errors(p, torch.tensor([[0, 9], [0, 1]]), ignore_index=9)


def test_a_soft_mask_of_exactly_one_half_is_background():
    p = torch.tensor([0.9, 0.9, 0.9, 0.9], dtype=torch.float64)
    for half, right in ((0.5, 2), (np.nextafter(0.5, 1), 3), (0.25, 2)):
        soft = torch.tensor([0.0, half, 0.75, 1.0], dtype=torch.float64)
        assert calibration_errors(p, soft).accuracy == right / 4
        both = torch.stack([p, p], dim=1), torch.stack([soft, soft], dim=1)
        assert calibration_errors(*both, num_classes=2, multilabel=True).accuracy == right / 4


def test_a_probability_of_exactly_one_half_chooses_background():
    for levels, masks, right in (
        (torch.tensor([0.5, 0.5, np.nextafter(0.5, 1)], dtype=torch.float64), [0, 1, 1], 2),
        (torch.tensor([127, 127, 128], dtype=torch.uint8), [0, 1, 1], 2),
        (torch.tensor([32767, 32767, 32768], dtype=torch.uint16), [0, 1, 1], 2),
    ):
        result = calibration_errors(levels, torch.tensor(masks))
        assert result.accuracy == pytest.approx(right / 3)
        assert sum(result.reliability.count * result.reliability.accuracy) == pytest.approx(right)


# ------------------------------------------------------------------ images and boundaries


@pytest.mark.parametrize("kind", ["float", "uint8", "uint16"])
@pytest.mark.parametrize("bins", [1, 2, 10])
def test_the_mean_of_image_errors_equals_brute_force(kind, bins):
    p, y = make_maps(5, 6, 7, 8)
    if kind != "float":
        top = np.iinfo(kind).max
        levels = (p.numpy() * top).round().astype(kind)
        p, given = torch.from_numpy(levels / top), torch.from_numpy(levels)
    r = calibration_errors(p if kind == "float" else given, y, bins=bins)
    own = [reference.equal_width(*reference.top_label(p[i], y[i]), bins)["ece"] for i in range(5)]
    close(r.ece_image_mean, np.mean(own), 1e-9)
    close(with_image_ece(r.rows)[:, -2], own, 1e-9)
    assert r.ece_image_mean > 0


def test_the_lowest_bin_counts_in_every_error():
    """With twenty classes the winner may have a probability below 0.1, in the first of ten bins."""
    z, y = softmax_maps(20, (3, 5, 6))
    p = (z / 40).softmax(1)
    assert float(p.amax(1).max()) < 0.1
    r = calibration_errors(p, y, num_classes=20)
    own = [abs(float((p[i].amax(0) - (p[i].argmax(0) == y[i]).double()).mean())) for i in range(3)]
    close(r.ece_image_mean, np.mean(own))
    close(r.ece_ew, abs(r.mean_confidence - r.accuracy))
    assert r.reliability.count.tolist() == [90] + [0] * 9
    for pooled in (r.ci["ece_ew"], r.ci["ece_image_mean"]):
        assert pooled[1] > 0


def band_reference(labels, valid, distance):
    """Return the valid pixels within a Euclidean distance of a valid pixel with another label, pair by pair."""
    pixels = np.argwhere(valid)
    band = np.zeros(labels.shape, bool)
    for pixel in pixels:
        others = pixels[labels[tuple(pixels.T)] != labels[tuple(pixel)]]
        band[tuple(pixel)] = len(others) > 0 and ((others - pixel) ** 2).sum(axis=1).min() <= distance**2
    return band


@pytest.mark.parametrize("kind", ["float", "uint8", "classes"])
@pytest.mark.parametrize("void", [None, 7])
def test_boundary_errors_equal_brute_force(kind, void):
    rng = np.random.default_rng(0)
    labels = np.zeros((2, 14, 44), np.int64)
    labels[0, 3:9, 2:5] = labels[1, 5:6, 40:44] = 1
    if kind == "classes":
        labels[1, :, 20:22] = 2
    if void is not None:
        # Void around the object, which then lies within 15 but not within 5 pixels of valid background.
        labels[0, :, :14] = np.where(labels[0, :, :14] == 1, 1, void)
        labels[1, 2:4] = void
    valid = labels != void
    if kind == "classes":
        p = rng.dirichlet([1, 1, 1], labels.shape)
        c, a = p.max(axis=-1), (p.argmax(axis=-1) == labels).astype(float)
        given_map = np.moveaxis(p, -1, 1)
    else:
        levels = rng.integers(0, 256, labels.shape, np.uint8)
        c, a = (part.reshape(labels.shape) for part in reference.top_label(levels / 255, labels))
        given_map = levels if kind == "uint8" else levels / 255
    r = calibration_errors(given_map, labels, bins=7, num_classes=3 if kind == "classes" else 1, ignore_index=void)
    sizes = []
    for distance, actual in ((5, r.ece_boundary_5), (15, r.ece_boundary_15)):
        band = np.stack([band_reference(labels[i], valid[i], distance) for i in range(2)])
        close(actual, reference.equal_width(c[band], a[band], 7)["ece"])
        sizes.append(band.sum())
    assert 0 < sizes[0] < sizes[1] < valid.sum()


@pytest.mark.parametrize("kind", ["float", "uint8", "classes", "multilabel"])
def test_boundary_errors_are_nan_without_a_boundary(kind):
    classes, several = 3 if kind in ("classes", "multilabel") else 1, kind == "multilabel"
    p = torch.full((1, classes, 4, 4), 1 / classes) if kind != "uint8" else torch.full((1, 4, 4), 60, dtype=torch.uint8)
    y = torch.zeros((1, 3, 4, 4) if several else (1, 4, 4), dtype=torch.int64)
    y[..., :2] = 1
    measuring = CalibrationMeter(num_classes=classes, multilabel=several)
    measuring.update(p, y)
    assert np.isnan(measuring.compute().ece_boundary_15) == several
    for boundary, labels in ((False, y), (True, torch.ones_like(y))):
        meter = CalibrationMeter(num_classes=classes, multilabel=several, boundary=boundary)
        meter.update(p, labels)
        assert all(np.isnan(getattr(meter.compute(), name)) for name in BOUNDARY)


# ------------------------------------------------------------------ settings and calls


@pytest.mark.parametrize(
    "options",
    [
        {"bins": 7, "ignore_index": 9, "boundary": False},
        {"bins": 3, "num_classes": 3, "ignore_index": 9},
        {"num_classes": 3, "multilabel": True, "boundary": False},
    ],
)
def test_a_reset_meter_is_like_a_new_one_with_the_same_options(options):
    classes, several = options.get("num_classes", 1), options.get("multilabel", False)
    rng = np.random.default_rng(0)

    def pair(void):
        p = rng.random((2, classes, 5, 5))
        p = p if classes == 1 else p / p.sum(axis=1, keepdims=True)
        y = rng.integers(0, 2, p.shape if several else (2, 5, 5))
        y[:, 0] = 9 if void else 1
        return p, y

    meter, fresh = CalibrationMeter(**options), CalibrationMeter(**options)
    meter.update(*pair(False))
    meter.reset()
    with pytest.raises(ValueError, match="nothing to measure"):
        meter.compute()
    p, y = pair("ignore_index" in options)
    for each in (meter, fresh):
        each.update(p, y)
    assert figures_of(meter) == pytest.approx(figures_of(fresh), nan_ok=True)
    assert len(meter.compute().reliability.count) == options.get("bins", 10)


def test_images_without_valid_pixels_are_not_counted():
    p, y = make_maps(4, 5, 6, 2)
    clean = calibration_errors(p[[0, 2]], y[[0, 2]])
    y[1], y[3] = 255, 255
    r = calibration_errors(p, y, ignore_index=255)
    assert (r.images, len(r.rows)) == (2, 4)
    close(r.ece_image_mean, clean.ece_image_mean)
    assert r.ci == clean.ci
    means = [part.reshape(2, -1).mean(axis=1) for part in reference.top_label(p[[0, 2]], y[[0, 2]])]
    for actual, expected in zip(r.image_points(), means, strict=True):
        close(actual, expected)


def test_invalid_pixels_counted_on_an_accelerator_prevent_a_result():
    """On the CPU a bad batch is refused at once; elsewhere it is counted, and `compute` raises."""
    meter = CalibrationMeter()
    meter.update(*make_maps(1, 3, 3, 0))
    meter.compute()
    meter.sketch.add_invalid(torch.tensor([True, False, True]))
    with pytest.raises(ValueError, match="2 pixels with probabilities outside"):
        meter.compute()


@pytest.mark.parametrize(("options", "top"), [({}, 1), ({"num_classes": 3}, 2)])
def test_labels_beyond_the_classes_are_noted_on_an_accelerator(options, top):
    labels = torch.tensor([[-1, 0, 1, top, top + 1, 255]]).as_subclass(OnAccelerator)
    wrong = [True, False, False, False, True]
    for valid, void_is_wrong in ((None, True), (labels != 255, False)):
        meter = CalibrationMeter(ignore_index=255, **options)
        assert meter._wrong_labels(labels, valid).flatten().tolist() == [*wrong, void_is_wrong]


@pytest.mark.parametrize(
    ("options", "call", "message"),
    [
        ({}, {"probabilities": torch.rand(3)}, "update needs masks"),
        ({}, {"masks": torch.ones(3)}, "one of probabilities or logits"),
        ({}, {"logits": torch.zeros(3, dtype=torch.uint8), "masks": torch.ones(3)}, "uint8; expected floats"),
        (
            {},
            {"probabilities": torch.zeros(3, dtype=torch.int16), "masks": torch.ones(3)},
            "int16; expected floats, or",
        ),
        ({"num_classes": 3}, {"probabilities": torch.zeros(5, 3, dtype=torch.uint8), "masks": torch.ones(5)}, "binary"),
    ],
)
def test_calls_with_missing_or_mistyped_arguments_are_refused(options, call, message):
    with pytest.raises(TypeError, match=message):
        CalibrationMeter(**options).update(**call)


def test_a_meter_has_at_least_one_bin_and_one_class():
    for options in ({"bins": 0}, {"num_classes": 0}):
        with pytest.raises(ValueError, match="is 0; expected"):
            CalibrationMeter(**options)
    assert calibration_errors([0.9, 0.3], [1, 1], bins=1).ece_ew == pytest.approx(abs((0.9 + 0.7) / 2 - 0.5))


@pytest.mark.parametrize(
    ("here", "there", "differs"),
    [
        ({}, {"num_classes": 3}, "num_classes is 1 here and 3 there"),
        ({}, {"num_classes": 2, "multilabel": True}, "num_classes is 1 here and 2 there"),
        ({"num_classes": 3}, {"num_classes": 3, "multilabel": True}, "softmax is True here and False there"),
        ({}, {"boundary": False}, "boundary is True here and False there"),
    ],
)
def test_meters_of_different_kinds_do_not_merge(here, there, differs):
    with pytest.raises(ValueError, match=f"cannot merge: {differs}"):
        CalibrationMeter(**here).merge(CalibrationMeter(**there))


@pytest.mark.parametrize("ignore_index", [None, 0, 255])
def test_labels_of_bytes_stay_bytes(ignore_index):
    assert integer_labels(np.zeros(3, np.uint8), ignore_index).dtype == np.uint8
