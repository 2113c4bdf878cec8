"""What every loss guarantees: two classes equal one logit, void and padding do not count, no overflow, no waiting."""

import math

import pytest
import torch

from densecal.methods import create
from tests.methods.common import VOID, batch
from tests.methods.test_adafocal import method_with_gammas
from tests.methods.test_protocol import NoSync, forbid

METHODS = [
    "brier", "focal", "flsd", "confidence-penalty", "mbls", "ml1-ace", "soft-ece", "s-avuc", "mmce", "adafocal"
]  # fmt: skip
# Small logits would leave the margin of 10 without effect.
OPTIONS = {"mbls": {"margin": 1.0}}


def make(name: str, **options):
    if name == "adafocal" and options.keys() <= {"num_classes"}:
        return method_with_gammas(options.get("num_classes", 1))
    return create(name, **{"num_samples": 9, **OPTIONS.get(name, {}), **options})


@pytest.mark.parametrize("name", METHODS)
def test_two_softmax_classes_equal_one_sigmoid_logit(name):
    z, y = batch(1)
    two = torch.cat([torch.zeros_like(z), z], dim=1)
    z.requires_grad_()
    two.requires_grad_()
    binary = (2 if name == "brier" else 1) * make(name).loss(z, y)
    softmax = make(name, num_classes=2).loss(two, y[:, 0].long())
    torch.testing.assert_close(softmax, binary, rtol=1e-5, atol=1e-6)
    binary.backward()
    softmax.backward()
    torch.testing.assert_close(two.grad[:, 1:], z.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("classes", [1, 4])
def test_void_pixels_change_nothing(name, classes):
    z, y = batch(classes)
    void = torch.zeros(5, 6, 7, dtype=torch.bool)
    void[:, 4:] = True
    y = torch.where(void[:, None] if classes == 1 else void, VOID, y)
    garbage = torch.where(void[:, None], 50 * torch.randn_like(z), z).requires_grad_()
    method = make(name, num_classes=classes)
    loss = method.loss(garbage, y)
    torch.testing.assert_close(loss, method.loss(z[:, :, :4], y[..., :4, :]))
    assert torch.equal(loss, method.loss(z, y))
    loss.backward()
    assert garbage.grad[:, :, 4:].eq(0).all()
    assert garbage.grad[:, :, :4].ne(0).any()


@pytest.mark.parametrize("name", ["ml1-ace", "soft-ece", "s-avuc", "mmce"])
def test_a_soft_label_of_exactly_one_half_is_background_for_the_term(name):
    z, masks = batch(1)
    z[:, :, 0], masks[:, :, 0] = 3.0, 0.5
    plain = create("bce", num_samples=9)

    def term(label: float) -> float:
        y = torch.where(masks == 0.5, label, masks)
        return (make(name).loss(z, y) - plain.loss(z, y)).item()

    assert term(0.5) == pytest.approx(term(0.0), abs=1e-6)
    assert term(0.5 + 2**-20) == pytest.approx(term(1.0), abs=1e-6)
    assert abs(term(0.0) - term(1.0)) > 1e-3


@pytest.mark.parametrize("name", ["soft-ece", "s-avuc", "mmce"])
def test_a_logit_of_exactly_0_chooses_background_in_the_term(name):
    z, masks = batch(1)
    plain = create("bce", num_samples=9)

    def term(logit: float) -> float:
        moved = torch.cat([z[:, :, 1:], torch.full_like(z[:, :, :1], logit)], dim=2)
        return (make(name).loss(moved, masks) - plain.loss(moved, masks)).item()

    assert term(0.0) == pytest.approx(term(-1e-6), abs=1e-5)
    assert abs(term(0.0) - term(1e-6)) > 1e-3


@pytest.mark.parametrize(("label", "gamma"), [(0.5, 3.0), (0.5 + 2**-20, 5.0)])
def test_flsd_takes_a_soft_label_of_exactly_one_half_for_background(label, gamma):
    p = 0.1  # of foreground: below 0.2, where its gamma is 5; of background 0.9, where it is 3
    z = torch.full((1, 1, 1, 1), math.log(p / (1 - p)))
    expected = -label * (1 - p) ** gamma * math.log(p) - (1 - label) * p**gamma * math.log(1 - p)
    assert make("flsd").loss(z, torch.full_like(z, label)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("label", "gamma"), [(0.5, 1.0), (0.5 + 2**-20, 4.0)])
def test_adafocal_takes_a_soft_label_of_exactly_one_half_for_background(label, gamma):
    method = create("adafocal", num_samples=9, bins=2)
    method.gamma.copy_(torch.tensor([4.0, 1.0]))  # below and above p_t = 0.5
    p = 0.1
    z = torch.full((1, 1, 1, 1), math.log(p / (1 - p)))
    expected = -label * (1 - p) ** gamma * math.log(p) - (1 - label) * p**gamma * math.log(1 - p)
    assert method.loss(z, torch.full_like(z, label)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("classes", [1, 4])
def test_padding_samples_and_void_images_change_nothing(name, classes):
    z, y = batch(classes)
    method = make(name, num_classes=classes)
    expected = method.loss(z[:3], y[:3])
    torch.testing.assert_close(method.loss(z, y, torch.tensor([1.0, 1, 1, 0, 0])), expected)
    y[3:] = VOID
    torch.testing.assert_close(method.loss(z, y), expected)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("classes", [1, 4])
def test_a_sample_of_weight_two_counts_twice(name, classes):
    z, y = batch(classes, count=2)
    method = make(name, num_classes=classes)
    twice = method.loss(z[[0, 1, 1]], y[[0, 1, 1]])
    torch.testing.assert_close(method.loss(z, y, torch.tensor([1.0, 2.0])), twice)
    assert not torch.isclose(method.loss(z, y), twice, rtol=1e-5)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("scale", [60.0, 200.0, 0.0])
@pytest.mark.parametrize("labels", ["right", "wrong", "mixed", "void"])
def test_the_gradient_is_finite_at_saturation_and_at_the_tie(name, classes, scale, labels):
    signs, y = batch(classes)
    z = (scale * signs.sign()).requires_grad_()
    if labels in ("right", "wrong"):
        best = (z > 0).float() if classes == 1 else z.argmax(dim=1)
        y = best if labels == "right" else (1 - best if classes == 1 else (best + 1) % classes)
    elif labels == "void":
        y = torch.full_like(y, VOID)
    loss = make(name, num_classes=classes).loss(z, y)
    loss.backward()
    assert loss.isfinite()
    assert z.grad.isfinite().all()
    if name == "mmce" and labels != "mixed":  # without both right and wrong pixels there is no term
        assert loss == make("bce", num_classes=classes).loss(z, y)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("classes", [1, 4])
def test_autocast_and_half_precision_logits_compute_in_float32(name, classes):
    z, y = batch(classes)
    z = z.bfloat16()
    method = make(name, num_classes=classes)
    plain = method.loss(z.float(), y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = method.loss(z, y)
    assert mixed.dtype == torch.float32
    assert torch.equal(mixed, plain)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("classes", [1, 4])
def test_a_step_reads_no_tensor_on_the_host(name, classes, monkeypatch):
    method = make(name, num_classes=classes)
    z, y = batch(classes)
    z.requires_grad_()
    weight, index = torch.ones(5), torch.arange(5)
    with monkeypatch.context() as patch, NoSync():
        forbid(patch)
        method.loss(z, method.prepare(z, y, index)[1], weight).backward()


@pytest.mark.parametrize("name", ["ml1-ace", "soft-ece", "s-avuc", "mmce"])
def test_soft_masks_are_binarised_in_the_calibration_term_only(name):
    z, y = batch(1)
    soft = 0.8 * y + 0.1
    terms = [make(name).loss(z, mask) - make("bce").loss(z, mask) for mask in (y, soft)]
    torch.testing.assert_close(terms[0], terms[1], rtol=1e-4, atol=1e-6)
    assert make(name, weight=0.0).loss(z, soft) == make("bce").loss(z, soft)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("focal", "gamma", -1.0),
        ("focal", "gamma", math.nan),
        ("confidence-penalty", "weight", -0.1),
        ("mbls", "margin", -1.0),
        ("mbls", "weight", math.inf),
        ("ml1-ace", "bins", 0),
        ("ml1-ace", "weight", -1.0),
        ("soft-ece", "bins", 1.5),
        ("soft-ece", "temperature", 0.0),
        ("soft-ece", "norm", 0.5),
        ("soft-ece", "weight", -1.0),
        ("s-avuc", "kappa", 0.0),
        ("s-avuc", "kappa", 1.0),
        ("s-avuc", "temperature", -1.0),
        ("s-avuc", "weight", -1.0),
        ("mmce", "width", 0.0),
        ("mmce", "width", math.inf),
        ("mmce", "weight", -1.0),
        ("mmce", "pixels", 1),
        ("mmce", "pixels", 10.5),
        ("adafocal", "bins", 0),
        ("adafocal", "lam", -1.0),
        ("adafocal", "gamma_init", 30.0),
        ("adafocal", "gamma_init", math.nan),
        ("adafocal", "gamma_max", 0.1),
        ("adafocal", "gamma_min", 0.5),
        ("adafocal", "s_th", -0.1),
    ],
)
def test_a_bad_value_is_refused_by_its_option_name(name, option, value):
    with pytest.raises(ValueError, match=f"{option}: found"):
        make(name, **{option: value})
