"""Perturbed labels: the identities of the loss, the techniques, their ranges and their noise."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import cross_entropy, one_hot

from densecal import labels
from densecal.labels import perturb
from densecal.rng import uniform


def image(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and a soft mask in float64."""
    generator = torch.Generator().manual_seed(seed)
    z = 4 * torch.randn(5, 7, generator=generator, dtype=torch.float64)
    return z, torch.rand(5, 7, generator=generator, dtype=torch.float64)


def expected_confidence(alpha: float, beta: float, num_classes: int = 1) -> float:
    """Return 1 - alpha * b, the largest entry of the expected label (hard y, alpha * beta < 1)."""
    return 1.0 - alpha * labels.half_scale(beta, num_classes)


strengths = st.floats(0, 2)
seeds = st.integers(0, 1000)


@settings(max_examples=50, deadline=None)
@given(seeds, strengths)
def test_identities_1_to_3_of_the_perturbed_loss(seed, beta):
    z, y = image(seed)
    p = z.sigmoid()
    loss, clean, inverted = bce(z, perturb(y, beta)), bce(z, y), bce(z, 1 - y)
    uniform_loss = -(p.log() + (1 - p).log()).mean() / 2
    g = ((2 * y - 1) * z).mean()
    torch.testing.assert_close(loss, (1 - beta) * clean + beta * uniform_loss)
    torch.testing.assert_close(loss, (1 - beta / 2) * clean + beta / 2 * inverted)
    torch.testing.assert_close(inverted - clean, g)
    torch.testing.assert_close(loss - clean, beta / 2 * g)


@settings(max_examples=50, deadline=None)
@given(seeds, strengths, st.floats(0, 1))
def test_identity_4_expected_stochastic_loss_is_label_smoothing(seed, beta, fraction):
    z, y = image(seed)
    alpha = fraction * 0.999 * labels.max_alpha(beta)
    expected = (1 - alpha) * bce(z, y) + alpha * bce(z, perturb(y, beta))
    torch.testing.assert_close(expected, bce(z, perturb(y, alpha * beta)))


def test_identity_5_expected_confidence(vectors):
    case = vectors["expected_label_confidence"]
    pairs = case["params"]["alpha,beta"]
    assert [expected_confidence(a, b) for a, b in pairs] == pytest.approx(case["expected"]["confidence"])
    for alpha, beta in pairs:
        hard = torch.tensor([0.0, 1.0], dtype=torch.float64)
        label = (1 - alpha) * hard + alpha * perturb(hard, beta)
        assert torch.maximum(label, 1 - label).tolist() == pytest.approx([expected_confidence(alpha, beta)] * 2)


def test_identity_6_the_authors_form_of_g():
    z, y = image(0)
    p = z.sigmoid()
    cal = -(p * (1 - p)).log().mean()
    torch.testing.assert_close(-2 * bce(z, y) + cal, ((2 * y - 1) * z).mean())


def test_perturbed_losses_match_the_vectors(vectors):
    case = vectors["scbce"]
    z, y = (torch.tensor(case["inputs"][name], dtype=torch.float64) for name in "zy")
    for beta, expected in case["expected"]["per_beta"].items():
        assert bce(z, perturb(y, float(beta))).item() == pytest.approx(expected["L_p"], abs=1e-12)


@pytest.mark.parametrize("strength", ["0.03", "0.06", "0.1"])
def test_label_smoothing_matches_the_vectors(vectors, strength):
    case = vectors[f"label_smoothing_{strength}"]
    z, y = (torch.tensor(case["inputs"][name], dtype=torch.float64) for name in "zy")
    labels.check_smoothing(float(strength))
    actual = bce(z, perturb(y, float(strength))).item()
    assert actual == pytest.approx(case["expected"]["bce"], abs=1e-12)


@pytest.mark.parametrize(
    ("technique", "beta", "foreground", "background", "top"),
    [("hi", 2.0, 0.0, 1.0, 0.5), ("si", 1.5, 0.25, 0.75, 2 / 3), ("m", 1.0, 0.5, 0.5, 1), ("dm", 1.0, 0.5, 0.5, 1)],
)
def test_technique_table(technique, beta, foreground, background, top):
    assert labels.technique_strength(technique) == beta
    assert perturb(torch.tensor([1.0, 0.0]), beta).tolist() == [foreground, background]
    assert labels.max_alpha(beta) == pytest.approx(top)


def test_techniques_of_four_classes(vectors):
    case = vectors["multiclass"]
    assert labels.max_beta(4) == pytest.approx(case["expected"]["beta_max"])
    assert labels.technique_strength("hi", 4) == labels.max_beta(4)
    assert labels.technique_strength("si", 4) == pytest.approx((labels.max_beta(4) + 1) / 2)
    inverted = perturb(torch.eye(4, dtype=torch.float64)[:1], labels.max_beta(4), 4)
    assert inverted[0].tolist() == pytest.approx(case["expected"]["hi_at_beta_max"], abs=1e-12)
    assert perturb(torch.eye(4), 1.0, 4).tolist() == [[0.25] * 4] * 4
    z = torch.tensor(case["inputs"]["logits"], dtype=torch.float64)
    y = torch.tensor(case["inputs"]["labels"])
    t = perturb(one_hot(y, 4).double(), case["params"]["beta"], 4)
    assert (cross_entropy(z, t) - cross_entropy(z, y)).item() == pytest.approx(case["expected"]["L_p_minus_L_y"])
    actual = expected_confidence(case["params"]["alpha"], case["params"]["beta"], 4)
    assert actual == pytest.approx(case["expected"]["expected_confidence_alpha0.1"])


@pytest.mark.parametrize(("beta", "classes"), [(2.1, 1), (-0.1, 1), (float("nan"), 1), (2.0, 3), (1.4, 4)])
def test_strength_out_of_range_names_the_half_scale(beta, classes):
    with pytest.raises(ValueError, match=r"full scale.*half scale"):
        perturb(torch.zeros(3), beta, classes)


def test_the_labels_of_the_authors_defaults_are_refused(vectors):
    b = vectors["code_default_beta2_labels"]["params"]["beta_half_scale"]
    with pytest.raises(ValueError, match=r"beta: found 4\.0"):
        perturb(torch.tensor([1.0, 0.0]), 2 * b)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: labels.technique_strength("hard"), "expected one of hi, si, m, dm"),
        (lambda: labels.check_smoothing(1.0), "0 <= beta < 1"),
        (lambda: labels.check_alpha(0.5, 2.0), "alpha < 0.5"),
        (lambda: perturb(torch.zeros(1), 2.1), "beta: found 2.1"),
        (lambda: perturb(torch.zeros(1, 4), 1.4, 4), "beta: found 1.4"),
        (lambda: labels.check_alpha(1.0, 1.0), "alpha < 1"),
        (lambda: labels.moderation_noise(torch.zeros(1), 0.6), "noise_bound"),
    ],
)
def test_values_out_of_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("bound", [0.0, -0.1, 0.5 + 2**-53, float("nan")])
def test_noise_without_width_or_beyond_one_half_is_refused(bound):
    with pytest.raises(ValueError, match=r"noise_bound: found .*; expected 0 < bound <= 0\.5"):
        labels.check_noise_bound(bound)
    with pytest.raises(ValueError, match="noise_bound"):
        labels.moderation_noise(torch.rand(3), bound)


@pytest.mark.parametrize("bound", [1e-6, 0.25, 0.5])
def test_noise_of_any_width_up_to_one_half_is_accepted(bound):
    labels.check_noise_bound(bound)
    noise = labels.moderation_noise(torch.linspace(0, 1, 101, dtype=torch.float64), bound)
    expected = stats.truncnorm(-bound, bound).ppf(np.linspace(0, 1, 101))
    assert noise.numpy() == pytest.approx(expected, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("bound", [0.023, 0.046, 0.092, 0.25, 0.5])
def test_rounding_moves_no_noise_beyond_its_bound(bound):
    ends = labels.moderation_noise(torch.tensor([0.0, 1 - 2**-24]), bound)
    assert bool((ends.abs() <= torch.tensor(bound)).all())
    assert ends.tolist() == pytest.approx([-bound, bound], rel=1e-6)


@pytest.mark.parametrize(
    ("check", "inside", "outside"),
    [
        (lambda v: labels.check_beta(v), [0.0, 2.0], [-1e-9, 2.0 + 1e-9]),
        (lambda v: labels.check_beta(v, 4), [0.0, 4 / 3], [-1e-9, 4 / 3 + 1e-9]),
        (labels.check_smoothing, [0.0, 1.0 - 1e-9], [-1e-9, 1.0]),
        (lambda v: labels.check_alpha(v, 2.0), [0.0, 0.5 - 1e-9], [-1e-9, 0.5]),
        (lambda v: labels.check_alpha(v, 1.5), [0.0, 2 / 3 - 1e-9], [-1e-9, 2 / 3]),
        (lambda v: labels.check_alpha(v, 0.5), [0.0, 1.0 - 1e-9], [-1e-9, 1.0]),
        (lambda v: labels.check_alpha(v, 0.0), [0.0, 1.0 - 1e-9], [-1e-9, 1.0]),
    ],
    ids=["beta", "beta of 4 classes", "smoothing", "alpha of hi", "alpha of si", "alpha, weak", "alpha of nothing"],
)
def test_ranges_are_those_of_the_specification(check, inside, outside):
    for value in inside:
        check(value)
    for value in outside:
        with pytest.raises(ValueError, match="expected 0 <="):
            check(value)


def test_a_strength_per_image():
    y = torch.rand(3, 1, 4, 4)
    beta = torch.tensor([0.0, 1.0, 2.0])
    t = perturb(y, beta)
    assert torch.equal(t[0], y[0])
    assert torch.equal(t[1], torch.full_like(t[1], 0.5))
    torch.testing.assert_close(t[2], 1 - y[2])
    assert torch.equal(perturb(y, beta.view(3, 1, 1, 1)), t)


@pytest.mark.parametrize("bound", [0.5, 0.25])
def test_moderation_noise_is_a_truncated_normal(vectors, bound):
    noise = labels.moderation_noise(uniform(0, 0, torch.arange(20000))[:, 0], bound).double().numpy()
    assert np.abs(noise).max() <= bound
    assert stats.kstest(noise, stats.truncnorm(-bound, bound).cdf).pvalue > 1e-3
    assert noise.std() == pytest.approx(vectors["dm_noise"]["expected"][f"std_bounds{bound}"], rel=0.02)
    assert abs(noise.mean()) < 5 * noise.std() / np.sqrt(len(noise))


def test_strengths_and_masks_may_be_integers():
    for y in (torch.tensor([0, 1], dtype=torch.uint8), torch.tensor([False, True]), torch.tensor([0, 1])):
        assert perturb(y, 2).tolist() == [1.0, 0.0]
