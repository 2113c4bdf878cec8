"""The two small networks: where they start, what they learn, and what they leave alone."""

import copy
import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, pad

from densecal.errors import InputError
from densecal.posthoc import Batch, LogitHistogram, create
from densecal.posthoc.networks.gradient import pixel_nll
from densecal.posthoc.networks.local_temperature import _FLOOR
from densecal.posthoc.networks.selective import mistakes
from densecal.posthoc.scores import score_batches

NETWORKS = ("local-temperature", "selective")


def bright_is_overconfident(seed=0, images=6, size=24):
    """Return logits that are calibrated where the image is dark and four times too large where it is bright."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(images):
        z = 2 * torch.randn(1, 1, size, size, generator=generator)
        y = (torch.rand(z.shape, generator=generator) < z.sigmoid()).long()
        bright = torch.zeros(1, 3, size, size)
        bright[..., size // 2 :] = 1.0
        batches.append(Batch(torch.where(bright[:, :1] > 0.5, 4 * z, z), y, bright))
    return batches


def mistakes_are_red(classes=1, seed=0, images=6, size=24):
    """Return confident logits that are wrong on red pixels and right elsewhere."""
    generator = torch.Generator().manual_seed(seed)
    batches = []
    for _ in range(images):
        red = torch.rand(1, size, size, generator=generator) < 0.2
        image = torch.rand(1, 3, size, size, generator=generator) * 0.3
        image[:, 0] += 0.6 * red
        if classes == 1:
            z = 3 * torch.randn(1, 1, size, size, generator=generator)
            masks = ((z > 0) != red[:, None]).long()
        else:
            z = 3 * torch.randn(1, classes, size, size, generator=generator)
            masks = (z.argmax(1) + red.long()) % classes
        batches.append(Batch(z, masks, image))
    return batches


def test_local_temperature_vector(vectors):
    case = vectors["local_temperature"]
    z, y, t = (torch.tensor(case["inputs"][key], dtype=torch.float64) for key in ("z", "y", "T"))
    nll = binary_cross_entropy_with_logits(z / t, y)
    assert float(nll) == pytest.approx(case["expected"]["nll"], rel=1e-12)

    calibrator = create("local-temperature")
    calibrator.temperatures = lambda z, images: t
    p = calibrator(z[None, None], torch.zeros(1, 3, 4, 4))[0, 0]
    assert float(-torch.where(y == 1, p, 1 - p).log().mean()) == pytest.approx(case["expected"]["nll"], rel=1e-12)


def test_selective_vector(vectors):
    case = vectors["selective_scaling"]
    z, y = (torch.tensor(case["inputs"][key], dtype=torch.float64).view(1, 1, 4, 8) for key in ("z", "y"))
    calibrator = create("selective", temperature=case["params"]["T_wrong"])
    calibrator.error_logits = lambda z, images: 1 - z.abs()
    assert int((calibrator.error_logits(z, None) > 0).sum()) == case["expected"]["n_flagged"]
    p = calibrator(z, torch.zeros(1, 3, 4, 8))
    assert float(-torch.where(y == 1, p, 1 - p).log().mean()) == pytest.approx(case["expected"]["nll"], rel=1e-12)


def test_local_temperature_starts_at_the_global_temperature():
    batches = bright_is_overconfident()
    best = create("temperature").fit(lambda: batches).temperature
    fitted = create("local-temperature", epochs=1, lr=1e-12).fit(lambda: batches)
    t = fitted.temperatures(batches[0].logits, batches[0].images)
    assert np.allclose(t, float(best), rtol=1e-4)


def test_local_temperature_learns_from_the_image():
    fitted = create("local-temperature", epochs=30, lr=3e-3).fit(bright_is_overconfident)
    before, after = score_batches(bright_is_overconfident, fitted)
    one = create("temperature").fit(bright_is_overconfident)
    assert after.nll < score_batches(bright_is_overconfident, one)[1].nll - 0.01
    assert after.nll < before.nll
    other = bright_is_overconfident(seed=9)[0]
    t = fitted.temperatures(other.logits, other.images)[0, 0]
    assert t[:, 16:].mean() > 1.2 * t[:, :8].mean()
    assert float(t.min()) > 0


def test_the_branches_of_local_temperature_do_not_stay_equal():
    fitted = create("local-temperature", epochs=2, lr=1e-3).fit(bright_is_overconfident)
    weights = fitted.branches.weight
    assert not torch.equal(weights[0], weights[1])
    assert float(fitted.gates.weight.std()) > 0


@pytest.mark.parametrize("classes", [1, 4])
def test_selective_finds_the_mistakes_that_can_be_seen(classes):
    def batches():
        return mistakes_are_red(classes)

    fitted = create("selective", num_classes=classes, temperature=4.0, epochs=15, lr=1e-2).fit(batches)
    other = mistakes_are_red(classes, seed=9)[0]
    wrong, _ = mistakes(other, None)
    flagged = fitted.error_logits(other.logits, other.images) > 0
    assert float((flagged == wrong).float().mean()) > 0.95
    before, after = score_batches(batches, fitted)
    assert after.nll < before.nll


def test_selective_divides_by_t2_where_flagged_and_only_there():
    fitted = create("selective", temperature=3.0, epochs=10, lr=1e-2).fit(mistakes_are_red)
    batch = mistakes_are_red(seed=3)[0]
    flagged = fitted.error_logits(batch.logits, batch.images) > 0
    p = fitted(batch.logits, batch.images)
    assert torch.allclose(p, torch.where(flagged, batch.logits / 3, batch.logits).sigmoid())


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("classes", [1, 3])
def test_the_chosen_class_never_changes(name, classes):
    fitted = create(name, num_classes=classes, epochs=1).fit(lambda: mistakes_are_red(classes))
    batch = mistakes_are_red(classes, seed=5)[0]
    p = fitted(batch.logits, batch.images)
    assert p.shape == batch.logits.shape
    if classes == 1:
        assert torch.equal(p > 0.5, batch.logits > 0)
    else:
        assert torch.equal(p.argmax(1), batch.logits.argmax(1))
        assert torch.allclose(p.sum(1), torch.ones(()), atol=1e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_nothing_is_learned_from_void_pixels(name):
    def clean():
        return mistakes_are_red()

    def with_void():
        for batch in mistakes_are_red():
            masks, logits = batch.masks.clone(), batch.logits
            masks[..., :4] = 1 - masks[..., :4]
            masks[..., 0] = 255
            yield Batch(logits, torch.where(masks == 1 - batch.masks, 255, masks), batch.images)

    a = create(name, epochs=1).fit(with_void, ignore_index=255)
    assert all(bool(tensor.isfinite().all()) for tensor in a.state_dict().values())
    only_void = [Batch(b.logits, torch.full_like(b.masks, 255), b.images) for b in clean()]
    if name == "local-temperature":
        with pytest.raises(InputError, match="no pixels"):
            create(name).fit(lambda: only_void, ignore_index=255)


def test_no_value_of_a_foreground_mask_is_void_by_default():
    as_bytes = [Batch(b.logits, 255 * b.masks, b.images) for b in mistakes_are_red()]
    a, b = (create("selective", epochs=1).fit(data) for data in (mistakes_are_red, lambda: as_bytes))
    assert all(torch.equal(a.state_dict()[key], b.state_dict()[key]) for key in a.state_dict())
    with pytest.raises(ValueError, match=r"masks outside \[0, 1\]"):
        create("local-temperature", epochs=1).fit(lambda: as_bytes)


@pytest.mark.parametrize("classes", [1, 3])
def test_the_detector_sees_logits_the_window_around_a_pixel_and_its_colour(classes):
    calibrator = create("selective", num_classes=classes)
    features = []
    calibrator.detector.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0]))
    generator = torch.Generator().manual_seed(0)
    z = 2 * torch.randn(2, classes, 6, 9, generator=generator)
    images = torch.rand(2, 3, 6, 9, generator=generator)
    calibrator(z, images)
    p = z.sigmoid()[:, 0] if classes == 1 else z.softmax(dim=1).amax(dim=1)
    own = [z[:, 0], z[:, 0].abs()] if classes == 1 else list(z.log_softmax(dim=1).unbind(dim=1))
    mean, variance = torch.empty_like(p), torch.empty_like(p)
    for row, column in itertools.product(range(6), range(9)):
        window = p[:, max(row - 2, 0) : row + 3, max(column - 2, 0) : column + 3].flatten(1)
        mean[:, row, column], variance[:, row, column] = window.mean(dim=1), window.var(dim=1, correction=0)
    expected = torch.stack([*own, mean, variance, *images.unbind(dim=1)], dim=1)
    torch.testing.assert_close(features[0], expected, atol=1e-5, rtol=1e-5)


def test_a_wrong_pixel_weighs_more_in_the_mean_loss_of_the_detector(monkeypatch):
    caught = []

    def without_training(network, batches, loss, *_, **__):
        caught.extend(float(loss(network, batch)) for batch in batches())
        return network

    monkeypatch.setattr("densecal.posthoc.networks.selective.train_copy", without_training)
    batches = mistakes_are_red(images=2, size=5)
    batches[1].masks[..., 0] = 255
    calibrator = create("selective", weight=3.0).fit(lambda: batches, ignore_index=255)
    for loss, batch in zip(caught, batches, strict=True):
        total = weights = 0.0
        chances = calibrator.error_logits(batch.logits, batch.images).sigmoid()
        for z, label, chance in zip(batch.logits.flatten(), batch.masks.flatten(), chances.flatten(), strict=True):
            wrong = bool(z > 0) != bool(label == 1)
            weight = 0 if label == 255 else 3 if wrong else 1
            total -= weight * math.log(chance if wrong else 1 - chance)
            weights += weight
        assert loss == pytest.approx(total / weights, rel=1e-5)


@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("void", [None, 255, 7])
def test_the_loss_of_a_batch_is_the_mean_nll_of_its_valid_pixels(classes, void):
    generator = torch.Generator().manual_seed(0)
    z = 3 * torch.randn(2, classes, 4, 5, generator=generator, dtype=torch.float64)
    shape = (2, 1, 4, 5) if classes == 1 else (2, 4, 5)
    masks = torch.randint(max(classes, 2), shape, generator=generator)
    if void is not None:
        masks[0, ..., :2] = void
    losses = []
    for image, row, column in itertools.product(range(2), range(4), range(5)):
        label = int(masks.view(2, 4, 5)[image, row, column])
        logits = z[image, :, row, column].tolist()
        if label != void:
            logits = [0.0, *logits] if classes == 1 else logits
            losses.append(math.log(sum(map(math.exp, logits))) - logits[label])
    assert float(pixel_nll(z, masks, void)) == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    if void is not None:
        assert float(pixel_nll(z, torch.full_like(masks, void), void)) == 0


@pytest.mark.parametrize("classes", [1, 3])
def test_mistakes_are_the_valid_pixels_whose_chosen_class_is_wrong(classes):
    batch = mistakes_are_red(classes, images=1, size=6)[0]
    masks = batch.masks.clone()
    masks[..., 0] = 255
    wrong, valid = mistakes(Batch(batch.logits, masks), 255)
    assert wrong.shape == valid.shape == (1, 1, 6, 6)
    for row, column in itertools.product(range(6), range(6)):
        z, label = batch.logits[0, :, row, column].tolist(), int(masks.view(6, 6)[row, column])
        chosen = int(z[0] > 0) if classes == 1 else z.index(max(z))
        assert bool(valid[0, 0, row, column]) == (label != 255)
        assert bool(wrong[0, 0, row, column]) == (label not in (chosen, 255))
    assert torch.equal(mistakes(batch, None)[1], torch.ones(1, 1, 6, 6, dtype=torch.bool))


def test_a_soft_label_of_exactly_one_half_is_background():
    soft = torch.tensor([0.0, 0.5, 0.5 + 2**-20, 1.0]).view(1, 1, 1, 4)
    z = torch.full((1, 1, 1, 4), 2.0)
    assert mistakes(Batch(z, soft), None)[0].flatten().tolist() == [True, True, False, False]
    for label, hard in zip(soft.flatten(), (0.0, 0.0, 1.0, 1.0), strict=True):
        expected = math.log1p(math.exp(2.0)) - 2.0 * hard
        assert float(pixel_nll(z[..., :1], label.view(1, 1, 1, 1), None)) == pytest.approx(expected, rel=1e-6)


def test_a_logit_of_exactly_0_chooses_background():
    wrong, _ = mistakes(Batch(torch.zeros(1, 1, 1, 2), torch.tensor([0, 1]).view(1, 1, 1, 2)), None)
    assert wrong.flatten().tolist() == [False, True]


@pytest.mark.parametrize("name", NETWORKS)
def test_a_fit_is_repeatable_and_starts_from_scratch(name):
    a = create(name, epochs=2).fit(mistakes_are_red)
    b = copy.deepcopy(a).fit(mistakes_are_red)
    assert all(torch.equal(a.state_dict()[key], b.state_dict()[key]) for key in a.state_dict())
    assert not any(parameter.requires_grad for parameter in a.parameters())
    assert not a.training or name == "local-temperature"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_failed_fit_changes_nothing(name):
    def breaks():
        batches = mistakes_are_red()
        yield from batches[:3]
        yield Batch(batches[3].logits * float("nan"), batches[3].masks, batches[3].images)

    calibrator = create(name, epochs=2).fit(mistakes_are_red)
    before = copy.deepcopy(calibrator.state_dict())
    with pytest.raises(ValueError, match=r"NaN|a loss of nan"):
        calibrator.fit(breaks)
    assert all(torch.equal(before[key], value) for key, value in calibrator.state_dict().items())
    with pytest.raises(InputError, match="batches without images"):
        calibrator.fit(lambda: [Batch(*b[:2]) for b in mistakes_are_red()])
    with pytest.raises(InputError, match=r"no pixels|no batches"):
        calibrator.fit(list)
    with pytest.raises(TypeError, match="expected batches"):
        calibrator.fit(LogitHistogram())


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (4, 4), (2, 30)])
@pytest.mark.parametrize("classes", [1, 3])
@pytest.mark.parametrize("name", NETWORKS)
def test_maps_may_be_of_any_size(name, classes, size):
    def batches():
        for batch in mistakes_are_red(classes):
            yield Batch(*(part[..., : size[0], : size[1]] for part in batch))
        yield mistakes_are_red(classes)[0]

    fitted = create(name, num_classes=classes, epochs=1).fit(batches)
    batch = next(batches())
    p = fitted(batch.logits, batch.images)
    assert p.shape == batch.logits.shape
    assert bool(((p > 0) & (p < 1)).all())


@pytest.mark.parametrize("size", [(5, 5), (6, 13), (40, 24)])
def test_windows_of_local_temperature_see_the_mirror_image_at_borders(size):
    calibrator = create("local-temperature", seed=2).double()
    for parameter in calibrator.parameters():
        parameter.data.normal_(generator=torch.Generator().manual_seed(1))
    z, images = torch.randn(2, 1, *size, dtype=torch.float64), torch.rand(2, 3, *size, dtype=torch.float64)
    around = [pad(maps, (4, 4, 4, 4), mode="reflect") for maps in (z, images)]
    inside = calibrator.temperatures(*around)[..., 4:-4, 4:-4]
    assert torch.allclose(calibrator.temperatures(z, images), inside, rtol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_call_without_images_is_refused(name):
    with pytest.raises(ValueError, match="without images"):
        create(name)(torch.zeros(1, 1, 8, 8))


def test_four_gates_weigh_four_branches_and_the_picture():
    calibrator = create("local-temperature").double()
    for layer in (calibrator.branches, calibrator.gates, calibrator.picture):
        layer.weight.data.zero_()
    branches, gates, picture = [0.3, -0.5, 0.9, 0.2], [0.4, -0.2, 0.7, -1.1], 0.6
    for layer, bias in ((calibrator.branches, branches), (calibrator.gates, gates), (calibrator.picture, [picture])):
        layer.bias.data[:] = torch.tensor(bias)
    g1, g2, g3, g4 = (1 / (1 + math.exp(-gate)) for gate in gates)
    t1, t2, t3, t4 = branches
    m = g3 * (g1 * t1 + (1 - g1) * t2) + (1 - g3) * (g2 * t3 + (1 - g2) * t4)
    m = g4 * m + (1 - g4) * picture
    z, images = torch.zeros(1, 1, 8, 8, dtype=torch.float64), torch.zeros(1, 3, 8, 8, dtype=torch.float64)
    expected = math.log1p(math.exp(m + math.log(math.expm1(1.0)))) + _FLOOR  # T is 1 and the floor where m is 0
    assert calibrator.temperatures(z, images).numpy() == pytest.approx(np.full((1, 1, 8, 8), expected), rel=1e-6)
