"""Region losses: segmentation-models-pytorch on every image, soft labels, void pixels, and the adaptive rule's gap."""

import warnings
from types import SimpleNamespace

import pytest
import segmentation_models_pytorch as smp
import torch

from densecal.methods import create, names, options
from densecal.methods.base_loss import parse_loss
from densecal.methods.losses import class_gap, image_gap
from tests.methods.common import VOID, batch

TERMS = ["dice", "iou", "tversky", "focal-tversky", "lovasz"]
PAIRS = [(term, classes) for term in TERMS for classes in (1, 4)]


def make(name: str = "bce", **given):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create(name, **{"num_samples": 9, **given})


def with_void(z, y):
    void = torch.zeros(y.shape, dtype=torch.bool)
    void[..., 4:, :] = True
    return torch.where(void, VOID, y), z


def peer(term: str, classes: int):
    """Return the loss of segmentation-models-pytorch for one image."""
    mode = "binary" if classes == 1 else "multiclass"
    made = {
        "dice": lambda: smp.losses.DiceLoss(mode, ignore_index=VOID),
        "iou": lambda: smp.losses.JaccardLoss(mode),
        "tversky": lambda: smp.losses.TverskyLoss(mode, alpha=0.3, beta=0.7, ignore_index=VOID),
        "focal-tversky": lambda: smp.losses.TverskyLoss(mode, alpha=0.3, beta=0.7, gamma=0.75, ignore_index=VOID),
        "lovasz": lambda: smp.losses.LovaszLoss(mode, ignore_index=VOID),
    }
    return made[term]()


# of K classes it takes the power of the mean, and the paper the mean of the powers: tested below
@pytest.mark.parametrize(("term", "classes"), [pair for pair in PAIRS if pair != ("focal-tversky", 4)])
def test_a_region_loss_is_the_mean_over_images_of_segmentation_models_pytorch(term, classes):
    z, y = batch(classes)
    if classes > 1:
        y[0] = y[0] % 3  # an image without the last class
    z.requires_grad_()
    loss = make(num_classes=classes, loss={term: 1}).loss(z, y)
    (gradient,) = torch.autograd.grad(loss, z)
    expected = torch.stack([peer(term, classes)(z[i : i + 1], y[i : i + 1]) for i in range(len(z))]).mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, z)[0])


@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("term", ["dice", "tversky", "lovasz"])
def test_void_pixels_are_ignored_as_in_segmentation_models_pytorch(term, classes):
    z, y = batch(classes)
    y, _ = with_void(z, y)
    loss = make(num_classes=classes, loss={term: 1}).loss(z, y)
    each = [peer(term, classes)(z[i : i + 1], y[i : i + 1]) for i in range(len(z))]
    torch.testing.assert_close(loss, torch.stack(each).mean())


def test_focal_tversky_of_classes_is_the_mean_of_their_powers():
    z, y = batch(4, count=2)
    p, t = z.double().softmax(1), torch.nn.functional.one_hot(y, 4).permute(0, 3, 1, 2).double()
    values = []
    for i in range(2):
        for k in range(4):
            TP, FP, FN = (p[i, k] * t[i, k]).sum(), (p[i, k] * (1 - t[i, k])).sum(), ((1 - p[i, k]) * t[i, k]).sum()
            values.append((1 - TP / (TP + 0.4 * FP + 0.6 * FN)) ** 0.5)
    given = {"focal-tversky": {"weight": 2, "false_positives": 0.4, "false_negatives": 0.6, "gamma": 0.5}}
    loss = make(num_classes=4, loss=given).loss(z, y)
    assert loss.item() == pytest.approx(2 * torch.stack(values).mean().item(), rel=1e-5)


@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("term", ["dice", "iou", "tversky"])
def test_with_soft_labels_the_loss_is_least_at_the_labels(term, classes):
    method = make("label-smoothing", beta=0.4, num_classes=classes, loss={term: 1})
    _, y = batch(classes)
    if classes > 1:
        y.flatten(1)[:, :4] = torch.arange(4)  # every image shows every class
    _, targets = method.prepare(y, y, torch.arange(5))
    t = method.soft_labels(targets).planes
    z = t.logit() if classes == 1 else t.log()
    assert method.loss(z, targets).item() == pytest.approx(0, abs=1e-6)
    assert method.loss(z + torch.randn_like(z) / 9, targets) > 1e-3
    assert method.loss(5 * z, targets) > 1e-2  # with the product p * t this would be lower


@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("term", TERMS)
def test_void_pixels_and_padding_change_nothing(term, classes):
    z, y = batch(classes)
    void, _ = with_void(z, y)
    garbage = torch.cat([z[:, :, :4], 50 * torch.randn_like(z[:, :, 4:])], dim=2).requires_grad_()
    method = make(num_classes=classes, loss={"bce": 1, term: 0.5})
    loss = method.loss(garbage, void)
    torch.testing.assert_close(loss, method.loss(z[:, :, :4], y[..., :4, :]))
    loss.backward()
    assert garbage.grad[:, :, 4:].eq(0).all()
    expected = method.loss(z[:3], y[:3])
    torch.testing.assert_close(method.loss(z, y, torch.tensor([1.0, 1, 1, 0, 0])), expected)
    void = y.clone()
    void[3:] = VOID
    torch.testing.assert_close(method.loss(z, void), expected)


@pytest.mark.parametrize("name", names())
@pytest.mark.parametrize("classes", [1, 4])
def test_every_method_works_on_a_base_loss(name, classes):
    """The method's own loss, plus the region loss of its targets."""
    given = {"warmup": 0} if "warmup" in options(name) else {}
    z, y = batch(classes)
    index = torch.arange(5)
    plain, dice, both = (
        make(name, num_classes=classes, loss=loss, **given) for loss in (None, {"dice": 1}, {"bce": 1, "dice": 0.5})
    )
    values = []
    for method in (plain, dice, both):
        method.start_epoch(0)
        values.append(method.loss(z, method.prepare(z, y, index)[1]))
    # a penalty of the method is in all three
    penalty = values[0] - plain.pixel_loss(z, _labels(plain, z, y, index))
    torch.testing.assert_close(values[2], values[0] + 0.5 * (values[1] - penalty))
    assert (values[1] - penalty) > 0.1
    both.loss(z.requires_grad_(), both.prepare(z, y, index)[1]).backward()
    assert z.grad.isfinite().all()


def _labels(method, z, y, index):
    targets = method.prepare(z, y, index)[1]
    return targets.labels if type(targets).__name__ == "NumberedMasks" else targets


@pytest.mark.parametrize("classes", [1, 4])
@pytest.mark.parametrize("technique", ["hi", "si"])
@pytest.mark.parametrize("term", TERMS)
def test_the_gap_is_what_inverted_labels_cost_more(term, classes, technique):
    """Against a method that perturbs every image, with autograd for the derivative of the expected loss in alpha."""
    z, y = batch(classes)
    loss = {"bce": 0.7, term: 1.3}
    method = make("aslp-mc", num_classes=classes, loss=loss, technique="hi", warmup=0)
    plain = make(num_classes=classes, loss=loss)
    inverted = make("aslp-mc", num_classes=classes, loss=loss, technique="hi")
    inverted.alpha.fill_(1.0)
    gap = method.gap(z, y)
    for i in range(5):
        one = slice(i, i + 1)
        _, targets = inverted.prepare(z[one], y[one], torch.tensor([i]))
        assert gap[i].item() == pytest.approx(
            (inverted.loss(z[one], targets) - plain.loss(z[one], y[one])).item(), abs=1e-4
        )


@pytest.mark.parametrize("classes", [1, 4])
def test_the_gap_of_cross_entropy_is_unchanged_and_alpha_follows_the_whole_gap(classes):
    z, y = batch(classes)
    gap = image_gap if classes == 1 else class_gap
    method = make("aslp-mei", num_classes=classes, warmup=0)
    assert torch.equal(method.gap(z, y), gap(z, y, VOID))
    method = make("aslp-mei", num_classes=classes, warmup=0, loss={"bce": 1, "dice": 1}, eta=0.001)
    good = 4 * (2 * y - 1) if classes == 1 else 4 * torch.nn.functional.one_hot(y, 4).permute(0, 3, 1, 2).float()
    method.after_epoch(SimpleNamespace(accuracy=0.9))
    method.after_step(good, y, torch.arange(5))
    expected = 0.001 * (gap(good, y, VOID) + method.base_loss.region_gap(good, method.soft_labels(y)))
    torch.testing.assert_close(method.alpha[:5], expected)
    assert (method.alpha[:5] > 0.001 * gap(good, y, VOID)).all()


def test_an_image_without_foreground_costs_no_dice_and_its_inverse_does():
    z, y = torch.full((1, 1, 4, 4), -3.0), torch.zeros(1, 1, 4, 4)
    method = make("aslp-mc", warmup=0, loss={"dice": 1})
    assert method.loss(z, y) == 0
    p = torch.tensor(-3.0).sigmoid()
    assert method.gap(z, y).item() == pytest.approx((1 - 2 * p / (p + 1)).item(), rel=1e-5)


@pytest.mark.parametrize("classes", [1, 4])
def test_with_a_band_the_region_loss_sees_the_labels_of_the_band_alone_perturbed(classes):
    z, y = batch(classes)
    y[..., :, :3], y[..., :, 3:] = 0, 1
    method = make("slp", alpha=0.4, band=1, num_classes=classes, loss={"dice": 1})
    method.uniform = lambda index, stream, count=1: torch.zeros(len(index), count)
    _, targets = method.prepare(z, y, torch.arange(5))
    planes, clean = method.soft_labels(targets).planes, method.soft_labels(y).planes
    changed = (planes != clean).any(dim=1)
    assert changed[:, :, 2:4].all()
    assert not changed[:, :, [0, 1, 4, 5, 6]].any()
    if classes > 1:
        torch.testing.assert_close(planes.sum(dim=1), torch.ones(5, 6, 7))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"dise": 1}, r"loss: found 'dise'; expected one of bce, dice, .*did you mean"),
        ({"ce": 1}, r"expected one of bce, .*did you mean bce"),
        ({}, "loss: found {}; expected weights of terms"),
        ("dice", "loss: found 'dice'; expected weights of terms"),
        ({"dice": -1}, "loss.dice: found -1; expected a number of at least 0"),
        ({"dice": True}, "loss.dice: found True"),
        ({"dice": float("nan")}, "loss.dice: found nan"),
        ({"dice": {"alpha": 1}}, "loss.dice: found 'alpha'; expected one of weight"),
        ({"tversky": {"gamma": 1}}, "expected one of weight, false_positives, false_negatives"),
        ({"tversky": {"false_positives": "a"}}, "loss.tversky.false_positives: found 'a'"),
        ({"bce": 0, "dice": 0}, "expected a term with a weight above 0"),
    ],
)
def test_a_wrong_base_loss_is_refused_by_name(loss, message):
    with pytest.raises(ValueError, match=message):
        make(loss=loss)


def test_a_weight_of_the_cross_entropy_alone_scales_it():
    z, y = batch(1)
    assert torch.equal(make(loss={"bce": 3}).loss(z, y), 3 * make().loss(z, y))
    assert torch.equal(make(loss={"bce": 1, "dice": 0}).loss(z, y), make().loss(z, y))
    assert parse_loss(None) == parse_loss({"bce": 1})


def test_weights_of_pixels_count_in_sums_and_lovasz_refuses_them():
    z, y = batch(1)
    weight = torch.rand(5, 1, 6, 7)
    p = z.double().sigmoid()
    TP, P, T = ((weight * v).flatten(1).sum(1) for v in (p * y, p, y))
    share = weight.flatten(1).sum(1)
    expected = ((1 - 2 * TP / (P + T)) * share).sum() / share.sum()
    assert make(loss={"dice": 1}).loss(z, y, weight).item() == pytest.approx(expected.item(), rel=1e-5)
    with pytest.raises(ValueError, match="lovasz with a weight per pixel"):
        make(loss={"lovasz": 1}).loss(z, y, weight)
