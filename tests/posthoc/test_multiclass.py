"""Temperature and vector scaling of K classes: a few passes, the minimum, and failures that change nothing."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, minimize_scalar
from scipy.special import expit, log_softmax

from densecal.errors import InputError
from densecal.posthoc import Batch, create
from densecal.posthoc import temperature as temperature_module
from densecal.posthoc.scores import score_batches

from .common import class_batches


def count_passes(batches):
    """Return a callable that yields the batches and counts its passes."""

    def start():
        start.passes += 1
        return iter(batches)

    start.passes = 0
    return start


def flatten(batches):
    """Return log-probabilities (N, K) and labels (N,) of the valid pixels."""
    z = torch.cat([batch.logits.permute(0, 2, 3, 1).flatten(0, 2) for batch in batches])
    y = torch.cat([batch.masks.flatten() for batch in batches])
    return log_softmax(z[y != 255].numpy(), axis=1), y[y != 255].numpy()


def nll(z, y):
    return -log_softmax(z, axis=1)[np.arange(len(y)), y].mean()


@pytest.mark.parametrize("temperature", [0.1, 1.0, 2.0, 20.0])
@pytest.mark.parametrize("void", [False, True])
def test_temperature_is_the_minimum_in_a_few_passes(temperature, void):
    batches = class_batches(temperature=temperature, void=void)
    start = count_passes(batches)
    fitted = create("temperature", num_classes=4).fit(start)
    z, y = flatten(batches)
    s = 1 / float(fitted.temperature)
    p = np.exp(log_softmax(s * z, axis=1))
    slope = ((p * z).sum(axis=1) - z[np.arange(len(y)), y]).mean()
    assert abs(slope) < 1e-9 * temperature
    assert float(fitted.temperature) == pytest.approx(temperature, rel=0.15)
    assert start.passes <= 12


@pytest.mark.parametrize("scale", [1e-4, 1e5])
def test_temperature_finds_logits_of_any_scale(scale):
    """At 1e5 every softmax is 0 or 1 at first, so the NLL has no curvature."""
    batches = class_batches(temperature=1.0)
    scaled = [Batch(scale * batch.logits, batch.masks) for batch in batches]
    own, actual = (
        float(create("temperature", num_classes=4).fit(lambda b=b: b).temperature) for b in (batches, scaled)
    )
    assert actual == pytest.approx(scale * own, rel=1e-9)


def test_the_search_for_a_temperature_ends_after_60_passes(monkeypatch):
    no_minimum = temperature_module._Sums(pixels=1.0, slope=-1.0, curvature=0.0, slope_at_zero=-1.0, wrong=1.0)
    passes = []
    monkeypatch.setattr(temperature_module, "_pass", lambda *arguments: passes.append(arguments) or no_minimum)
    with pytest.raises(InputError, match="no minimum after 60 passes"):
        create("temperature", num_classes=3).fit(list)
    assert len(passes) == 60


def test_two_classes_are_the_same_as_one_logit():
    batches = class_batches(classes=2)
    binary = [Batch((b.logits[:, 1] - b.logits[:, 0])[:, None], b.masks[:, None]) for b in batches]
    two = create("temperature", num_classes=2).fit(lambda: batches)
    one = create("temperature").fit(lambda: binary)
    assert float(two.temperature) == pytest.approx(float(one.temperature), rel=1e-9)
    assert torch.allclose(two(batches[0].logits)[:, 1:], one(binary[0].logits))


def two_classes(z, y):
    """Return batches of one row of pixels, whose logits are 0 and z."""
    logits = torch.stack([torch.zeros(len(z), dtype=torch.float64), torch.tensor(z, dtype=torch.float64)])
    return lambda: [Batch(logits.view(1, 2, 1, -1), torch.tensor(y).view(1, 1, -1))]


@pytest.mark.parametrize("excess", [1e-4, 0.01, 0.5])
def test_logits_that_agree_with_the_labels_ever_so_slightly_have_a_temperature(excess):
    all_right, wrong = 1.0 + excess, 1.0
    T = float(create("temperature", num_classes=2).fit(two_classes([all_right, wrong], [1, 0])).temperature)

    def slope_of_nll(s):
        return wrong * expit(s * wrong) - all_right * expit(-s * all_right)

    assert slope_of_nll(0.999 / T) < 0 < slope_of_nll(1.001 / T)
    for z, y in (([all_right, wrong], [0, 1]), ([2.0, -1.0, 0.5, 0.5], [1, 1, 0, 0])):
        with pytest.raises(InputError, match="best T is infinite"):
            create("temperature", num_classes=2).fit(two_classes(z, y))


@pytest.mark.parametrize(
    ("z", "y"),
    [([2.0, 1.0, 3.0, -2.0, 1.5, -0.5], [1, 1, 1, 0, 0, 0]), ([2.0, -1.5, 0.5, -2.0, -1.0, -3.0], [1, 1, 1, 0, 0, 0])],
    ids=["first class", "second class"],
)
def test_mistakes_on_one_class_alone_set_the_temperature(z, y):
    wrongness = np.where(np.array(y) == 1, -1.0, 1.0) * z
    best = minimize_scalar(lambda s: np.logaddexp(0.0, s * wrongness).mean(), (0.1, 1.0), tol=1e-12).x
    fitted = create("temperature", num_classes=2).fit(two_classes(z, y))
    assert float(fitted.temperature) == pytest.approx(1 / best, rel=1e-5)


def test_vector_is_the_minimum_a_general_minimiser_finds():
    batches = class_batches(classes=3, void=True)
    start = count_passes(batches)
    fitted = create("vector", num_classes=3).fit(start)
    z, y = flatten(batches)
    best = minimize(lambda x: nll(z * x[:3] + x[3:], y), [1.0] * 3 + [0.0] * 3, method="BFGS", options={"gtol": 1e-8})
    ours = nll(z * fitted.weight + fitted.bias, y)
    assert ours == pytest.approx(best.fun, abs=1e-10)
    assert ours <= best.fun + 1e-12
    assert fitted.weight.tolist() == pytest.approx(best.x[:3], abs=1e-4)
    assert float(fitted.bias.sum()) == pytest.approx(0, abs=1e-9)
    assert (fitted.bias - fitted.bias[0]).tolist() == pytest.approx(best.x[3:] - best.x[3], abs=1e-4)
    assert start.passes <= 12


def test_vector_ignores_what_softmax_ignores():
    batches = class_batches(classes=3)
    shifted = [Batch(b.logits + 5 * torch.randn_like(b.logits[:, :1]), b.masks) for b in batches]
    fitted = create("vector", num_classes=3).fit(lambda: batches)
    again = create("vector", num_classes=3).fit(lambda: shifted)
    assert np.allclose(fitted.weight, again.weight, rtol=1e-5, atol=1e-8)
    assert torch.allclose(fitted(batches[0].logits), fitted(shifted[0].logits), atol=1e-12)


def test_scores_before_and_after():
    batches = class_batches(temperature=3.0, void=True)
    for name in ("temperature", "vector"):
        fitted = create(name, num_classes=4).fit(lambda: batches)
        before, after = score_batches(lambda: batches, fitted, 255)
        z, y = flatten(batches)
        clipped = np.maximum(log_softmax(z, axis=1)[np.arange(len(y)), y], np.log(1e-7))
        assert before.nll == pytest.approx(-clipped.mean(), rel=1e-9)
        assert after.nll < before.nll
        assert after.ece < before.ece


def test_outputs_are_probabilities_of_every_class():
    batches = class_batches()
    for name in ("temperature", "vector"):
        fitted = create(name, num_classes=4).fit(lambda: batches)
        p = fitted(batches[0].logits.float())
        assert p.shape == batches[0].logits.shape
        assert p.dtype == torch.float32
        assert torch.allclose(p.sum(1), torch.ones(()), atol=1e-6)
    temperature = create("temperature", num_classes=4).fit(lambda: batches)
    assert torch.equal(temperature(batches[0].logits).argmax(1), batches[0].logits.argmax(1))


def all_right(batches):
    return [Batch(b.logits, b.logits.argmax(1)) for b in batches]


def without_class_2(batches):
    return [Batch(b.logits, torch.where(b.masks == 2, 255, b.masks)) for b in batches]


def all_void(batches):
    return [Batch(b.logits, torch.full_like(b.masks, 255)) for b in batches]


def infinite_logits(batches):
    return [Batch(b.logits / 0, b.masks) for b in batches]


def inverted_logits(batches):
    return [Batch(-b.logits, b.masks) for b in batches]


def negative_labels(batches):
    return [Batch(b.logits, b.masks - 1) for b in batches]


def bad_labels(batches):
    return [Batch(b.logits, b.masks + 1) for b in batches]


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("temperature", all_right, "best T is 0"),
        ("temperature", inverted_logits, "best T is infinite"),
        ("temperature", all_void, "no valid pixels"),
        ("temperature", infinite_logits, "NaN or infinite"),
        ("temperature", bad_labels, "labels from 1 to 4; expected 0 to 3, or 255"),
        ("temperature", negative_labels, "labels from -1 to 2; expected 0 to 3, or 255"),
        ("vector", negative_labels, "labels from -1 to 2; expected 0 to 3, or 255"),
        ("vector", bad_labels, "labels from 1 to 4; expected 0 to 3, or 255"),
        ("vector", all_right, "best weights are infinite"),
        ("vector", without_class_2, "no pixel of class 2"),
        ("vector", all_void, "no pixel of class 0, 1, 2, 3"),
        ("vector", infinite_logits, "NaN or infinite"),
    ],
)
def test_a_failed_fit_says_why_and_changes_nothing(name, change, message):
    calibrator = create(name, num_classes=4).fit(class_batches)
    before = calibrator.to_json()
    with pytest.raises(InputError, match=message):
        calibrator.fit(lambda: change(class_batches()))
    assert calibrator.to_json() == before


@pytest.mark.parametrize("ignore_index", [7, -1])
def test_void_pixels_may_have_any_value(ignore_index):
    batches = class_batches(void=True)
    other = [Batch(b.logits, torch.where(b.masks == 255, ignore_index, b.masks)) for b in batches]
    for name, table in (("temperature", "temperature"), ("vector", "weight")):
        fitted = create(name, num_classes=4).fit(lambda: batches)
        again = create(name, num_classes=4).fit(lambda: other, ignore_index)
        assert np.array_equal(getattr(fitted, table), getattr(again, table))


def test_a_histogram_is_not_enough_for_k_classes():
    from densecal.posthoc import LogitHistogram

    with pytest.raises(TypeError, match="found a histogram; expected batches"):
        create("temperature", num_classes=3).fit(LogitHistogram())


def test_shapes_must_fit():
    with pytest.raises(ValueError, match=r"expected \(B, 4, H, W\) and \(B, H, W\)"):
        create("temperature", num_classes=4).fit(lambda: class_batches(classes=3))
    for name in ("temperature", "vector"):
        for change in (lambda masks: masks[:, :-1], lambda masks: masks[:, None], lambda masks: masks.flatten(1)):
            batches = [Batch(b.logits, change(b.masks)) for b in class_batches()]
            with pytest.raises(ValueError, match=r"expected \(B, 4, H, W\) and \(B, H, W\)"):
                create(name, num_classes=4).fit(lambda batches=batches: batches)
