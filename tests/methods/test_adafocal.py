"""AdaFocal: the vectors, bins against brute force, the two branches, and state that survives a checkpoint."""

import io
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from densecal.methods import create
from densecal.methods.adafocal import bin_gaps, equal_mass_edges, update_gamma
from densecal.metrics import CalibrationMeter
from densecal.metrics.curves import Atoms
from tests.methods.common import batch

DEFAULTS = {"lam": 1.0, "gamma_min": -2.0, "gamma_max": 20.0, "s_th": 0.2}


def make(classes: int = 1, **options):
    return create("adafocal", **{"num_samples": 9, "num_classes": classes, **options})


def method_with_gammas(classes: int = 1, bins: int = 5):
    """Return a method with inner bins and gammas of both signs."""
    method = make(classes, bins=bins)
    method.gamma.copy_(torch.tensor([3.0, -0.5, 0.7, -1.5, 1.2]))
    method.edges.copy_(torch.tensor([0.1, 0.3, 0.5, 0.6, 0.8, 0.95]))
    return method


def validation(z: torch.Tensor, y: torch.Tensor, classes: int = 1):
    meter = CalibrationMeter(num_classes=classes, boundary=False)
    meter.update(logits=z, masks=y)
    return meter.compute()


def brute_edges(c: np.ndarray, bins: int) -> np.ndarray:
    return np.interp(np.linspace(0, len(c), bins + 1), np.arange(len(c)), np.sort(c))


def brute_gaps(c: np.ndarray, a: np.ndarray, edges: np.ndarray) -> list[float]:
    members = [(c > low) & (c <= high) for low, high in pairwise(edges)]
    return [float(c[m].mean() - a[m].mean()) if m.any() else 0.0 for m in members]


def atoms_of(c: np.ndarray, a: np.ndarray) -> Atoms:
    return Atoms.from_counts(c, np.ones(len(c), np.int64), a.astype(np.int64))


def test_gamma_trace_vector(vectors):
    inputs, expected = vectors["adafocal_gamma_trace"]["inputs"], vectors["adafocal_gamma_trace"]["expected"]
    gamma = np.array([inputs["gamma0"]])
    for E, after in zip(inputs["E_val_bin"], expected["gamma"], strict=True):
        gamma = update_gamma(gamma, np.array([E]), **DEFAULTS)
        assert gamma == pytest.approx([after], abs=1e-12)


def test_gamma_is_clipped_and_a_gamma_at_the_threshold_stays():
    gamma, E = np.array([19.0, -1.9, 0.2, -0.2]), np.array([0.9, -0.9, 0.0, 0.0])
    assert update_gamma(gamma, E, **DEFAULTS).tolist() == [20.0, -2.0, 0.2, -0.2]


def test_loss_vector(vectors):
    inputs, expected = vectors["adafocal_loss"]["inputs"], vectors["adafocal_loss"]["expected"]
    z, y = (torch.tensor(inputs[key]).view(1, 1, 4, 4) for key in "zy")
    method = make(bins=2)
    method.gamma.copy_(torch.tensor([2.0, -0.5]))
    method.edges.copy_(torch.tensor([0.5, 0.75, 1.0]))
    assert method.loss(z, y).item() == pytest.approx(expected["mean"], abs=1e-6)


def test_bins_vector(vectors):
    inputs, expected = vectors["adafocal_val_bins"]["inputs"], vectors["adafocal_val_bins"]["expected"]
    result = validation(torch.tensor(inputs["z"], dtype=torch.float64), torch.tensor(inputs["y"]))
    atoms = Atoms.from_counts(*result.sketch.top_atoms())
    edges = equal_mass_edges(atoms, 4)
    gaps = [row[3] for row in expected["count_conf_acc_gap"]]
    assert edges == pytest.approx(expected["edges"], abs=1e-12)
    assert bin_gaps(atoms, edges) == pytest.approx(gaps, abs=1e-12)
    method = make(bins=4)
    method.after_epoch(result)
    assert method.edges.tolist() == pytest.approx(expected["edges"], abs=1e-7)
    assert method.gamma.tolist() == pytest.approx(np.exp(gaps), abs=1e-12)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=80), st.integers(1, 20))
def test_bins_of_tied_values_equal_those_of_single_pixels(pixels, bins):
    c, a = np.array([0.5 + n / 24 for n, _ in pixels]), np.array([right for _, right in pixels])
    atoms = atoms_of(c, a)
    edges = equal_mass_edges(atoms, bins)
    np.testing.assert_allclose(edges, brute_edges(c, bins), rtol=0, atol=1e-15)
    np.testing.assert_allclose(bin_gaps(atoms, edges), brute_gaps(c, a, edges), rtol=0, atol=1e-12)


@pytest.mark.parametrize("classes", [1, 4])
def test_bins_of_a_sketch_equal_those_of_single_pixels(classes):
    z, y = batch(classes, count=30)
    method = make(classes)
    method.after_epoch(validation(z, y, classes))
    p = z.double().sigmoid() if classes == 1 else z.double().softmax(1)
    c = torch.maximum(p, 1 - p) if classes == 1 else p.amax(1)
    right = (p > 0.5) == (y > 0.5) if classes == 1 else p.argmax(1) == y
    c, right = c.flatten().numpy(), right.flatten().numpy()
    edges = brute_edges(c, 15)
    np.testing.assert_allclose(method.edges.numpy(), edges, rtol=0, atol=1e-7)
    np.testing.assert_allclose(method.gamma.numpy(), np.exp(brute_gaps(c, right, edges)), rtol=1e-12)


def test_the_outer_bins_take_the_values_beyond_them():
    method = method_with_gammas()
    p_t = torch.tensor([0.0, 0.05, 0.29, 0.3, 0.49, 0.5, 0.61, 0.8, 0.94, 0.95, 1.0], dtype=torch.float64)
    actual = method.pixel_gamma(torch.logit(p_t).float())
    gamma = [3.0, 3.0, 3.0, -0.5, -0.5, 0.7, -1.5, 1.2, 1.2, 1.2, 1.2]
    assert actual.tolist() == pytest.approx(gamma)


def test_a_bin_without_pixels_keeps_its_gamma():
    z = torch.full((1, 1, 4, 4), 2.0)
    method = make(s_th=0.7, gamma_init=0.7)  # float32 would round it below the threshold
    method.after_epoch(validation(z, torch.ones_like(z)))
    assert method.gamma.tolist() == [0.7] * 15
    assert method.loss(z, torch.ones_like(z)).isfinite()


def test_equal_gammas_give_the_focal_loss():
    for classes in (1, 4):
        z, y = batch(classes)
        focal = create("focal", num_samples=9, num_classes=classes, gamma=1.0)
        torch.testing.assert_close(make(classes).loss(z, y), focal.loss(z, y))


@pytest.mark.parametrize("classes", [1, 4])
def test_the_loss_agrees_with_its_definition(classes):
    z, y = batch(classes)
    method = method_with_gammas(classes)
    p = z.double().sigmoid() if classes == 1 else z.double().softmax(1)
    p_t = torch.where(y > 0.5, p, 1 - p) if classes == 1 else p.gather(1, y[:, None])[:, 0]
    total = 0.0
    for value in p_t.flatten().tolist():
        inner = [0.3, 0.5, 0.6, 0.8]
        gamma = method.gamma[sum(value >= edge for edge in inner)].item()
        factor = (1 - value) ** gamma if gamma > 0 else (1 + value) ** -gamma
        total -= factor * math.log(value)
    assert method.loss(z, y).item() == pytest.approx(total / p_t.numel(), rel=1e-5)


def test_soft_masks_mix_both_labels_with_the_gamma_of_the_likelier():
    z, y = torch.tensor([1.0, -0.2]).view(1, 1, 1, 2), torch.tensor([0.8, 0.3]).view(1, 1, 1, 2)
    p = [1 / (1 + math.exp(-v)) for v in (1.0, -0.2)]  # p_t 0.73 -> gamma -1.5; 0.55 -> gamma 0.7
    one = 0.8 * -((1 + p[0]) ** 1.5) * math.log(p[0]) + 0.2 * -((2 - p[0]) ** 1.5) * math.log(1 - p[0])
    two = 0.3 * -((1 - p[1]) ** 0.7) * math.log(p[1]) + 0.7 * -(p[1] ** 0.7) * math.log(1 - p[1])
    assert method_with_gammas().loss(z, y).item() == pytest.approx((one + two) / 2, rel=1e-5)


@pytest.mark.parametrize("classes", [1, 4])
def test_the_gradient_equals_that_of_the_definition(classes):
    z, y = batch(classes, count=1)
    z.requires_grad_()
    method = method_with_gammas(classes)
    (actual,) = torch.autograd.grad(method.loss(z, y), z)
    p_t = torch.where(y > 0.5, z, -z).double().sigmoid() if classes == 1 else None
    if p_t is None:
        p_t = z.double().softmax(1).gather(1, y[:, None])[:, 0]
    gamma = method.pixel_gamma(torch.logit(p_t.detach()).float()).double()
    values = -torch.where(gamma > 0, (1 - p_t) ** gamma.abs(), (1 + p_t) ** gamma.abs()) * p_t.log()
    (expected,) = torch.autograd.grad(values.mean(), z)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-7)


def test_bins_and_gammas_survive_a_state_dict():
    z, y = batch(1)
    straight, resumed = make(), make()
    for epoch in range(6):
        straight.start_epoch(epoch)
        straight.after_epoch(validation(z + epoch / 3, y))
        if epoch == 3:
            file = io.BytesIO()
            torch.save(straight.state_dict(), file)
            file.seek(0)
            resumed.load_state_dict(torch.load(file, weights_only=True))
            assert torch.equal(resumed.loss(z, y), straight.loss(z, y))
        elif epoch > 3:
            resumed.start_epoch(epoch)
            resumed.after_epoch(validation(z + epoch / 3, y))
    assert straight.gamma.unique().numel() > 10
    for key, value in straight.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value)


def test_statistics_summarise_gamma():
    assert method_with_gammas().statistics() == pytest.approx({"gamma_min": -1.5, "gamma_mean": 0.58, "gamma_max": 3.0})
