"""The histogram: exact where it claims to be, mergeable, small, and strict about bad input."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import expit

from densecal.posthoc import LogitHistogram, create, logit_histogram
from densecal.posthoc.logit_histogram import fine_bin, level_logits, logit
from densecal.posthoc.scores import score_histogram

from .common import crooked, histogram_of, honest, probabilities

ROOT = Path(__file__).parents[2]
FITS = ("temperature", "platt", "beta", "isotonic", "histogram")


@pytest.fixture
def binned(monkeypatch):
    """Count every pixel in fine bins from the start."""
    monkeypatch.setattr(logit_histogram, "EXACT_PIXELS", 0)


def test_sure_probabilities_have_finite_logits_and_both_ends_are_alike():
    ends = np.array([0.0, 1e-8, 1e-7, 1 - 1e-7, 1 - 1e-8, 1.0])
    largest = np.log((1 - 1e-7) / 1e-7)
    np.testing.assert_allclose(logit(ends), [-largest] * 3 + [largest] * 3, rtol=1e-9)


@given(st.floats(-16000, 16000), st.floats(-16000, 16000))
def test_fine_bins_rise_with_the_logit_and_are_narrow(a, b):
    low, high = sorted((a, b))
    bins = fine_bin(np.array([low, high]))
    assert 0 <= bins[0] <= bins[1] < 28672
    if bins[0] == bins[1]:
        assert high - low <= (1 + abs(low)) / 1023
        assert (low < 0) == (high < 0)


def test_a_few_pixels_are_kept_as_they_are():
    z, y = crooked(5000)
    histogram = histogram_of(z, y)
    zs, ys, n = histogram.by_label()
    assert np.array_equal(zs, z)
    assert np.array_equal(ys, y)
    assert n.sum() == histogram.pixels == 5000
    assert histogram.foreground == y.sum()


def test_means_of_bins_are_exact(binned):
    z, y = crooked(5000)
    zs, ys, n = histogram_of(z, y).by_label()
    for label in (0, 1):
        assert n[ys == label] @ zs[ys == label] == pytest.approx(z[y == label].sum(), rel=1e-12)
    assert n.sum() == 5000
    assert len(n) < 5000


def test_fine_bins_change_fits_little(monkeypatch):
    z, y = crooked(200_000)
    exact = histogram_of(z, y)
    monkeypatch.setattr(logit_histogram, "EXACT_PIXELS", 0)
    binned = histogram_of(z, y)
    grid = np.linspace(-9, 9, 2001)
    worst = {
        name: np.abs(probabilities(create(name).fit(exact), grid) - probabilities(create(name).fit(binned), grid))
        for name in FITS
    }
    for name in ("temperature", "platt", "beta"):
        assert worst[name].max() < 1e-6
    assert worst["histogram"].max() < 1e-3
    assert worst["isotonic"].mean() < 1e-3
    before, after = score_histogram(exact), score_histogram(binned)
    assert after.nll == pytest.approx(before.nll, abs=1e-6)
    assert after.ece == pytest.approx(before.ece, abs=1e-4)


def test_merging_equals_counting_together(binned):
    z, y = honest(20_000)
    whole, left, right = histogram_of(z, y), histogram_of(z[:7000], y[:7000]), histogram_of(z[7000:], y[7000:])
    left.merge(right)
    for ours, theirs in zip(left.by_label(), whole.by_label(), strict=True):
        assert np.allclose(ours, theirs, rtol=1e-13, atol=0)
    assert right.pixels == 13_000


def test_merging_exact_and_binned_parts_bins_them(monkeypatch):
    z, y = honest(3000)
    exact = histogram_of(z[:1000], y[:1000])
    monkeypatch.setattr(logit_histogram, "EXACT_PIXELS", 1500)
    binned = histogram_of(z[1000:], y[1000:])
    exact.merge(binned)
    assert exact.pixels == 3000
    assert len(exact.by_label()[0]) < 3000


def test_order_and_chunks_do_not_matter(binned, monkeypatch):
    z, y = honest(10_000)
    monkeypatch.setattr(logit_histogram, "_CHUNK", 999)
    shuffled = torch.randperm(10_000, generator=torch.Generator().manual_seed(0))
    a = create("temperature").fit(histogram_of(z, y)).temperature
    b = create("temperature").fit(histogram_of(z[shuffled], y[shuffled])).temperature
    assert float(a) == pytest.approx(float(b), rel=1e-12)


def test_void_pixels_are_not_counted():
    z, y = honest(1000)
    masks = y.long()
    masks[::3] = 255
    histogram = LogitHistogram()
    histogram.update(z, masks, ignore_index=255)
    kept = masks != 255
    expected = histogram_of(z[kept], y[kept])
    assert histogram.pixels == int(kept.sum())
    assert np.array_equal(histogram.by_label()[0], expected.by_label()[0])


def test_a_soft_label_of_exactly_one_half_is_background():
    soft = np.array([0.0, 0.25, 0.5, np.nextafter(0.5, 1), 0.75, 1.0])
    histogram = histogram_of(np.arange(6.0), soft)
    assert histogram.by_label()[1].tolist() == [0, 0, 0, 1, 1, 1]
    assert histogram.foreground == 3


@pytest.mark.parametrize("levels", [256, 65536])
def test_levels_stand_for_the_middle_of_the_values_that_round_to_them(levels):
    z = level_logits(levels)
    p = expit(z) * (levels - 1)
    assert np.allclose(p[1:-1], np.arange(1, levels - 1))
    assert p[0] == pytest.approx(0.25)
    assert p[-1] == pytest.approx(levels - 1.25)
    assert bool((np.diff(z) > 0).all())


@pytest.mark.parametrize("levels", [256, 65536])
def test_integer_maps_are_exact(levels):
    rng = np.random.default_rng(0)
    v = np.clip(rng.normal(0.4, 0.3, 20_000), 0, 1)
    v = np.rint(v * (levels - 1)).astype(np.int64)
    y = rng.random(20_000) < v / levels
    counts = np.zeros((2, levels), np.int64)
    np.add.at(counts, (y.astype(int), v), 1)
    histogram = LogitHistogram()
    histogram.add_levels(counts)
    z = level_logits(levels)[v]

    def nll(s):
        return np.mean(np.logaddexp(0, s * z) - y * s * z)

    s = minimize_scalar(nll, (0.5, 2.0), tol=1e-12).x
    assert float(create("temperature").fit(histogram).temperature) == pytest.approx(1 / s, rel=1e-6)
    assert histogram.pixels == 20_000


def test_extreme_logits_are_clipped_not_lost():
    histogram = histogram_of([np.inf, -np.inf, 1e30, 0.5, -0.5], [1, 0, 1, 0, 1])
    z, _, n = histogram.by_label()
    assert n.sum() == 5
    assert z.max() == 16383
    assert z.min() == -16383


@pytest.mark.parametrize(("z", "y"), [([np.nan, 1.0], [0, 1]), ([1.0, 2.0], [0, 2]), ([1.0, 2.0], [-1, 1])])
def test_bad_pixels_are_refused_and_change_nothing(z, y):
    histogram = histogram_of([1.0], [1])
    with pytest.raises(ValueError, match="1 pixels with NaN logits or masks outside"):
        histogram.update(torch.tensor(z), torch.tensor(y))
    assert histogram.pixels == 1


def test_shapes_and_types_must_fit():
    with pytest.raises(ValueError, match="expected floats and as many masks"):
        LogitHistogram().update(torch.zeros(3), torch.zeros(4))
    with pytest.raises(ValueError, match="expected floats"):
        LogitHistogram().update(torch.zeros(3, dtype=torch.int64), torch.zeros(3))


def test_counting_never_waits_for_an_accelerator(binned):
    """Fake CUDA tensors have no values: code that needs one on the host raises."""
    from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

    with FakeTensorMode():
        histogram = LogitHistogram()
        z, masks = torch.randn(2, 1, 8, 8, device="cuda"), torch.zeros(2, 1, 8, 8, device="cuda")
        for ignore_index in (None, 255):
            histogram.update(z, masks, ignore_index)
            histogram.update(z.half(), masks.long(), ignore_index)
        assert histogram._counts.device.type == "cuda"
        with pytest.raises(DataDependentOutputException):
            histogram.by_label()


def test_the_accelerator_path_counts_the_same(binned, monkeypatch):
    z, y = honest(20_000)
    expected = histogram_of(z, y).by_label()
    monkeypatch.setattr(logit_histogram, "as_array", lambda values: values)  # tensors stay tensors
    for ours, theirs in zip(histogram_of(z, y).by_label(), expected, strict=True):
        assert np.allclose(ours, theirs, rtol=1e-13, atol=0)


def test_memory_does_not_grow():
    histogram = LogitHistogram()
    for seed in range(3):
        histogram.update(*honest(1 << 20, seed=seed))
    held = [histogram._counts, histogram._sums, *(array for pair in histogram._raw for array in pair)]
    assert sum(array.nbytes for array in held) < 2e6


def ten_to_the(power):
    """Return the temperature of 10^power synthetic pixels, drawn and counted a million at a time."""
    histogram = LogitHistogram()
    for part in range(10**power // 10**6):
        histogram.update(*honest(10**6, temperature=1.7, seed=part))
    assert histogram.pixels == 10**power
    return float(create("temperature").fit(histogram).temperature)


def test_temperature_of_ten_million_pixels():
    # The labels are random, so T itself has a standard error of 0.0011 here.
    assert ten_to_the(7) == pytest.approx(1.7, abs=4e-3)


@pytest.mark.slow
def test_temperature_of_a_hundred_million_pixels_in_seconds_and_below_a_gigabyte():
    """In its own process, whose peak memory is that of this fit, most of it torch itself."""
    script = (
        "import time, torch\n"
        "torch.set_num_threads(1)\n"
        "from tests.posthoc.test_logit_histogram import ten_to_the\n"
        "start = time.perf_counter()\n"
        "found, seconds = ten_to_the(8), time.perf_counter() - start\n"
        # Not getrusage, which would give the peak of the parent process.
        "status = open('/proc/self/status').read()\n"
        "print(found, seconds, status.split('VmHWM:')[1].split()[0])\n"
    )
    out = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    temperature, seconds, kilobytes = map(float, out.split())
    print(f"T {temperature:.5f}, {seconds:.1f} s, {kilobytes / 1024:.0f} MB")
    assert temperature == pytest.approx(1.7, abs=1e-3)
    assert seconds < 60
    assert kilobytes * 1024 < 1e9


@pytest.mark.parametrize(
    ("true", "share", "as_float", "as_8_bits", "as_16_bits"),
    [(1.3, 0.04, 1.3043, 1.3028, 1.3043), (2.0, 0.18, 2.0066, 1.9510, 2.0063), (4.0, 0.51, 4.0131, 3.0578, 3.8289)],
)
def test_temperature_of_8_bit_maps(true, share, as_float, as_8_bits, as_16_bits):
    """The numbers of docs/posthoc.md: 8 bits end at |z| = 6.2, 16 bits at 11.8."""
    z, y = honest(1_000_000, temperature=true, scale=2.1)
    p = z.double().sigmoid().numpy()
    assert float(create("temperature").fit(histogram_of(z, y)).temperature) == pytest.approx(as_float, abs=1e-4)
    for levels, expected in ((256, as_8_bits), (65536, as_16_bits)):
        counts = np.zeros((2, levels), np.int64)
        np.add.at(counts, (y.numpy().astype(int), np.rint(p * (levels - 1)).astype(int)), 1)
        histogram = LogitHistogram()
        histogram.add_levels(counts)
        assert float(create("temperature").fit(histogram).temperature) == pytest.approx(expected, abs=1e-4)
        assert histogram.saturated == pytest.approx(share if levels == 256 else 0.0, abs=0.005)
