"""The closed loop moves against the gap, settles for every lag, does not wind up, and survives a checkpoint."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from densecal.methods import create


def result(confidence, accuracy=0.9):
    return SimpleNamespace(mean_confidence=confidence, accuracy=accuracy)


def visit(method, gap=5.0):
    """Show a method every image once, all of them fitted well."""
    n = method.num_samples
    masks = torch.ones(n, 1, 2, 2)
    method.after_step(torch.full((n, 1, 2, 2), gap), masks, torch.arange(n))


def test_overconfidence_raises_the_perturbation_and_underconfidence_lowers_it():
    method = create("aslp-cl", num_samples=3, smoothing=0.0, warmup=0)
    method.start_epoch(0)
    visit(method)
    assert method.alpha.tolist() == [0, 0, 0]  # nothing measured yet
    method.after_epoch(result(0.94))
    method.start_epoch(1)
    visit(method)
    assert method.alpha.tolist() == pytest.approx([0.02] * 3)  # gain 0.5 of a gap of 0.04
    method.after_epoch(result(0.88))
    method.start_epoch(2)
    visit(method)
    assert method.alpha.tolist() == pytest.approx([0.01] * 3)


def test_images_that_contradict_their_labels_are_perturbed_less():
    method = create("aslp-cl", num_samples=2, smoothing=0.0, warmup=0)
    method.start_epoch(0)
    method.after_epoch(result(0.98))
    method.start_epoch(1)
    method.after_step(torch.tensor([5.0, -5.0]).view(2, 1, 1, 1), torch.ones(2, 1, 1, 1), torch.tensor([0, 1]))
    assert method.alpha.tolist() == pytest.approx([0.04, 0.0])


@settings(max_examples=60, deadline=None)
@given(
    rho=st.floats(0.05, 1.0),
    slope=st.floats(0.1, 1.0),
    overconfidence=st.floats(0.0, 0.1),
    gain=st.floats(0.05, 0.95),
    smoothing=st.floats(0.0, 0.9),
)
def test_the_loop_settles_without_a_gap_for_every_lag(rho, slope, overconfidence, gain, smoothing):
    """The network follows the labels of the previous epoch with a lag of rate rho and is over-confident."""
    assume(overconfidence / slope < 0.25)  # the most that perturbation can remove above the floor
    assume(gain + smoothing < 0.98)
    method = create("aslp-cl", num_samples=1, gain=gain, smoothing=smoothing, warmup=0)
    assert gaps(method, rho, slope, overconfidence)[-1] == pytest.approx(0, abs=1e-3)


def gaps(method, rho, slope, overconfidence):
    confidence, accuracy, before, actual = 0.9 + overconfidence, 0.9, 1.0, []
    for epoch in range(3000):
        method.start_epoch(epoch)
        method.after_epoch(result(confidence, accuracy))
        confidence += rho * (accuracy + overconfidence - slope * (1 - before) - confidence)
        before = float(method.bound)
        actual.append(confidence - accuracy)
    return actual


@settings(max_examples=300, deadline=None)
@given(rho=st.floats(0.01, 1.0), gain=st.floats(0.01, 1.5), smoothing=st.floats(0.0, 0.99))
def test_the_bound_on_gain_and_smoothing_is_where_the_roots_leave_the_unit_circle(rho, gain, smoothing):
    assume(abs(gain - (1 - smoothing * (1 - rho))) > 1e-3)
    polynomial = np.poly([1, 1 - rho, smoothing])
    polynomial[2] += gain * rho * (1 - smoothing)
    assert (abs(np.roots(polynomial)).max() < 1) == (gain < 1 - smoothing * (1 - rho))


def test_the_bound_does_not_wind_up():
    method = create("aslp-cl", num_samples=1, smoothing=0.0, warmup=0)
    for epoch in range(50):
        method.start_epoch(epoch)
        method.after_epoch(result(0.6))  # under-confident for long: there is nothing to remove
    assert float(method.bound) == 1
    method.after_epoch(result(1.0))
    assert float(method.bound) == pytest.approx(0.95)  # and it reacts at once


def test_nothing_moves_before_the_loop_closes():
    method = create("aslp-cl", num_samples=1, warmup=3)
    for epoch in range(2):
        method.start_epoch(epoch)
        method.after_epoch(result(1.0))
    assert float(method.bound) == 1
    method.start_epoch(2)
    method.after_epoch(result(1.0))
    assert float(method.bound) < 1


def test_statistics_hold_the_bound_instead_of_the_accuracy_and_the_gap_once_there_is_one():
    method = create("aslp-cl", num_samples=1, warmup=0)
    before = method.statistics()
    assert before["bound"] == 1
    assert {"accuracy", "gap"}.isdisjoint(before)
    method.after_epoch(result(0.94))
    after = method.statistics()
    assert (after["bound"], after["gap"]) == (pytest.approx(0.98), pytest.approx(0.04))
    assert "accuracy" not in after


def test_validations_are_counted_as_epochs_and_their_accuracy_is_kept():
    method = create("aslp-cl", num_samples=1)
    for epoch in range(3):
        assert method.epoch == epoch
        method.after_epoch(result(0.95, 0.8 + 0.01 * epoch))
    assert float(method.last_accuracy) == pytest.approx(0.82)


def test_state_survives_a_checkpoint():
    first = create("aslp-cl", num_samples=4, warmup=0)
    first.start_epoch(0)
    first.after_epoch(result(0.97))
    second = create("aslp-cl", num_samples=4, warmup=0)
    second.load_state_dict(first.state_dict())
    for method in (first, second):
        method.start_epoch(1)
        visit(method)
        method.after_epoch(result(0.95))
    assert torch.equal(first.bound, second.bound)
    assert torch.equal(first.alpha, second.alpha)
    assert first.statistics()["gap"] == pytest.approx(0.3 * 0.07 + 0.7 * 0.05, abs=1e-6)


def test_a_loop_outside_the_stable_range_oscillates():
    method = create("aslp-cl", num_samples=1, gain=0.5, warmup=0)
    method.smoothing = 0.8
    assert max(map(abs, gaps(method, rho=0.1, slope=1.0, overconfidence=0.1)[-100:])) > 0.01
    with pytest.raises(ValueError, match=r"smoothing: found 0.8 with gain 0.5; expected .* together below 1"):
        create("aslp-cl", num_samples=1, gain=0.5, smoothing=0.8)


def test_the_defaults_are_those_of_the_documentation():
    method = create("aslp-cl", num_samples=1)
    actual = method.gain, method.smoothing, method.floor, method.eta, method.warmup, method.technique
    assert actual == (0.5, 0.3, 0.75, 0.05, 1, "hi")
    assert (method.noise_bound, method.grad_norm, method.band, method.lam) == (0.5, "paper", None, 0.0)
    assert (float(method.bound), method.statistics()["bound"]) == (1.0, 1.0)


def test_by_default_one_visit_reaches_the_highest_threshold_and_moves_at_most_eta_times_the_gap():
    method = create("aslp-cl", num_samples=2, warmup=0)
    for epoch in range(20):
        method.start_epoch(epoch)
        method.after_epoch(result(1.0, 0.5))
    assert float(method.bound) == 0.75
    method.after_step(torch.tensor([5.0, 1.0]).view(2, 1, 1, 1), torch.ones(2, 1, 1, 1), torch.tensor([0, 1]))
    assert method.alpha.tolist() == pytest.approx([0.25, 0.05])


@pytest.mark.parametrize(
    "options", [{"gain": 0.999}, {"gain": 1e-3}, {"smoothing": 0.0}, {"floor": 0.5}, {"floor": 1.0}]
)
def test_options_just_inside_the_stable_range_are_accepted(options):
    options = {"gain": 0.5, "smoothing": 0.0} | options
    method = create("aslp-cl", num_samples=1, **options)
    assert {name: getattr(method, name) for name in options} == options


@pytest.mark.parametrize("option", ["lam", "preset", "schedule", "constraint", "accuracy"])
def test_options_of_the_other_rules_are_refused(option):
    with pytest.raises(TypeError, match=f"unknown option {option!r}"):
        create("aslp-cl", num_samples=1, **{option: 1})


@pytest.mark.parametrize(
    "option",
    [
        {"gain": 1.0},
        {"gain": 0.0},
        {"smoothing": 1.0},
        {"smoothing": 0.5},
        {"smoothing": -0.1},
        {"floor": 0.4},
        {"floor": 0.5 - 1e-9},
        {"floor": 1.0 + 1e-9},
    ],
)
def test_options_outside_the_stable_range_are_refused(option):
    with pytest.raises(ValueError, match=f"^{next(iter(option))}: found"):
        create("aslp-cl", num_samples=1, **option)
