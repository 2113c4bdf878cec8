"""The promises of risk control hold over 500 draws of calibration images, and what they cost."""

import copy
import math

import numpy as np
import pytest

from densecal.errors import InputError
from densecal.posthoc.high_probability import control, hoeffding_bentkus
from densecal.posthoc.margins import MarginScores, distance_to
from densecal.posthoc.prediction_sets import SCORES, SetCurve, score_levels
from densecal.posthoc.risk_control import RiskCurve

SPLITS = 500
IMAGES, PIXELS = 600, 120
STEPS = 100


def foreground_images():
    """Yield maps and masks of images that differ in how hard they are."""
    rng = np.random.default_rng(0)
    for _ in range(IMAGES):
        y = rng.random(PIXELS) < rng.uniform(0.1, 0.5)
        y[0] = True
        skill = rng.normal(1.6, 1.2)
        z = (2.0 * y - 1.0) * skill + rng.normal(size=PIXELS)
        yield 1.0 / (1.0 + np.exp(-z)), y


class Pool:
    """Curves of single images. `sum_of` is what merging some of them gives, which takes 500 draws too long."""

    def __init__(self, curves):
        self.curves = curves
        self.sums = [name for name, value in vars(curves[0]).items() if isinstance(value, np.ndarray)]
        self.stacked = {name: np.array([getattr(curve, name) for curve in curves]) for name in self.sums}

    def sum_of(self, chosen):
        whole = copy.copy(self.curves[0])
        for name in self.sums:
            setattr(whole, name, self.stacked[name][chosen].sum(axis=0))
        whole.images = whole.units = len(chosen)
        whole.with_background = len(chosen)
        return whole


def test_a_pool_sums_as_merging_does(curves):
    images, _ = curves
    whole = RiskCurve(STEPS)
    for i in (3, 1, 4):
        whole.merge(images.curves[i])
    pooled = images.sum_of(np.array([3, 1, 4]))
    assert whole.control(0.5) == pooled.control(0.5)
    assert control(whole, "precision", 0.6, 0.5) == control(pooled, "precision", 0.6, 0.5)


def splits(n, seed=1):
    """Yield the calibration images and the others, 500 times."""
    rng = np.random.default_rng(seed)
    for _ in range(SPLITS):
        order = rng.permutation(IMAGES)
        yield order[:n], order[n:]


@pytest.fixture(scope="module")
def curves():
    """Curves of the images, and their losses at every threshold by kind of risk."""
    curves = []
    for p, y in foreground_images():
        curves.append(RiskCurve(STEPS))
        curves[-1].update(p, y)
    return Pool(curves), {kind: np.array([curve.risks(kind) for curve in curves]) for kind in ("misses", "precision")}


def within_simulation_error(share, promised):
    """Return whether a share of 500 draws may have the promised probability: three standard errors."""
    return share <= promised + 3.0 * math.sqrt(promised * (1.0 - promised) / SPLITS)


@pytest.mark.parametrize(("kind", "alpha"), [("misses", 0.2), ("precision", 0.25)])
def test_high_probability_control_fails_no_more_often_than_delta(curves, kind, alpha):
    """The share of draws whose expected loss on other images is above alpha is at most delta."""
    images, losses = curves
    delta, n, failed, costs = 0.1, 80, 0, []
    for chosen, others in splits(n):
        result = control(images.sum_of(chosen), kind, alpha, delta)
        t = round(result.threshold * STEPS)
        failed += losses[kind][others, t].mean() > alpha
        costs.append(losses[kind][others, t].mean())
    print(f"{kind}: above alpha in {failed / SPLITS:.3f} of the draws, mean loss {np.mean(costs):.3f} of {alpha}")
    assert within_simulation_error(failed / SPLITS, delta)
    assert np.mean(costs) > alpha / 2  # of use: it does not just give away everything


def test_control_on_average_fails_more_often_than_high_probability_control(curves):
    """What delta buys: without it about half of the calibration sets give an expected loss above alpha."""
    images, losses = curves
    failed = 0
    for chosen, others in splits(80):
        result = images.sum_of(chosen).control(0.2)
        failed += losses["misses"][others, round(result.threshold * STEPS)].mean() > 0.2
    assert failed / SPLITS > 0.2


def class_images(classes=4):
    rng = np.random.default_rng(2)
    for _ in range(IMAGES):
        z = rng.normal(size=(classes, PIXELS)) * 2.0
        p = np.exp(z) / np.exp(z).sum(0)
        y = (p.cumsum(0) > rng.random(PIXELS)).argmax(0)
        bold = np.exp(z * rng.uniform(0.7, 2.5))
        yield bold / bold.sum(0), y


@pytest.mark.parametrize(("score", "delta"), [("thr", None), ("aps", None), ("raps", None), ("thr", 0.1)])
def test_prediction_sets_cover_as_promised(score, delta):
    """On average over draws (delta None), or in all but a share delta of them."""
    curves = []
    for p, y in class_images():
        curves.append(SetCurve(4, score))
        curves[-1].update(p, y)
    pool = Pool(curves)
    losses, sizes = pool.stacked["_misses"], pool.stacked["_sizes"]
    alpha, misses, size = 0.1, [], []
    for chosen, others in splits(60, seed=3):
        result = pool.sum_of(chosen).control(alpha, delta)
        t = round(result.threshold / (1.02 if score == "raps" else 1.0) * 2000)
        misses.append(losses[others, t].mean())
        size.append(sizes[others, t].mean())
    print(f"{score} delta {delta}: {np.mean(misses):.4f} missed, {np.mean(size):.2f} classes a pixel")
    assert np.mean(size) < 3.5
    if delta is None:
        assert np.mean(misses) <= alpha + 3.0 * np.std(misses) / math.sqrt(SPLITS)
        assert np.mean(misses) >= alpha - 3.0 / 61  # not more than the promise costs: 1 / (n + 1), and the grid
    else:
        assert within_simulation_error(np.mean(np.array(misses) > alpha), delta)


def disc_pairs(count=300, side=24):
    rng = np.random.default_rng(4)
    rows, columns = np.mgrid[:side, :side]
    for _ in range(count):
        y, x, radius = rng.uniform(8, 16), rng.uniform(8, 16), rng.uniform(3, 7)
        truth = (rows - y) ** 2 + (columns - x) ** 2 < radius**2
        y, x, radius = y + rng.normal(), x + rng.normal(), radius - rng.uniform(0, 2)
        yield (rows - y) ** 2 + (columns - x) ** 2 < radius**2, truth


@pytest.mark.parametrize("shape", ["disc", "square", "cross"])
def test_margins_cover_as_promised(shape):
    parts = []
    for prediction, truth in disc_pairs():
        parts.append(MarginScores(0.95, shape))
        parts[-1].update(prediction, truth)
    scores = np.array([part.units[0] for part in parts])
    rng = np.random.default_rng(5)
    alpha, covered, margins = 0.15, [], []
    for _ in range(SPLITS):
        order = rng.permutation(len(parts))
        whole = MarginScores(0.95, shape)
        whole.units, whole.images = scores[order[:30]].tolist(), 30
        margin = whole.control(alpha)
        covered.append((scores[order[30:]] <= margin.pixels).mean())
        margins.append(margin.pixels)
    print(f"{shape}: covered {np.mean(covered):.4f} of {1 - alpha}, margin {np.mean(margins):.2f} pixels")
    assert np.mean(covered) >= 1 - alpha - 3.0 * np.std(covered) / math.sqrt(SPLITS)
    assert 1 <= np.mean(margins) <= 4


# ------------------------------------------------------------------ what they compute


@pytest.mark.parametrize("shape", ["disc", "square", "cross"])
@pytest.mark.parametrize("coverage", [0.5, 0.9, 1.0])
def test_a_margin_score_is_the_first_growth_that_covers_enough(shape, coverage):
    """Compared with growing the mask pixel by pixel."""
    for prediction, truth in disc_pairs(20):
        scores = MarginScores(coverage, shape)
        scores.update(prediction, truth)
        grown = next(m for m in range(99) if (distance_to(prediction, shape) <= m)[truth].mean() >= coverage)
        assert scores.units == [grown]


def test_growth_by_a_square_and_a_cross_is_dilation():
    from scipy.ndimage import binary_dilation, generate_binary_structure

    mask = next(iter(disc_pairs(1)))[0]
    for shape, connectivity in (("square", 2), ("cross", 1)):
        dilated = binary_dilation(mask, generate_binary_structure(2, connectivity), iterations=3)
        np.testing.assert_array_equal(distance_to(mask, shape) <= 3, dilated)


def test_an_image_without_a_prediction_makes_the_margin_infinite():
    scores, mask = MarginScores(), np.eye(4, dtype=bool)
    for _ in range(8):
        scores.update(mask, mask)
    scores.update(np.zeros((4, 4), bool), mask)
    margin = scores.control(0.1)
    assert math.isinf(margin.pixels)
    assert margin.is_trivial
    assert scores.control(0.2).pixels == 0
    assert scores.control(0.2).covered == 8 / 9


def test_void_pixels_and_images_without_foreground_miss_nothing():
    scores, nothing, mask = MarginScores(), np.zeros((4, 4), bool), np.eye(4, dtype=bool)
    scores.update(nothing, mask, ~mask)
    scores.update(nothing, nothing)
    assert scores.units == [0.0, 0.0]


def test_a_group_is_covered_if_all_its_images_are():
    scores, mask = MarginScores(1.0, "square"), np.zeros((5, 5), bool)
    mask[0, 0] = True
    scores.add_group([(mask, mask, None), (mask, mask[::-1], None)])
    assert scores.units == [4.0]
    assert scores.images == 2


def test_sets_are_those_of_the_definitions():
    """Brute force over pixels and classes, on probabilities that the grid holds exactly."""
    rng = np.random.default_rng(0)
    p = rng.multinomial(20, [0.4, 0.3, 0.2, 0.1], size=50).T / 20
    for score in SCORES:
        levels = score_levels(p, score)
        top = 1.02 if score == "raps" else 1.0
        for n in range(50):
            order = sorted(range(4), key=lambda k: -p[k, n])  # stable, as the ranks are
            for rank, k in enumerate(order):
                likelier = sum(p[j, n] for j in order[:rank])
                expected = {
                    "thr": 1 - p[k, n], "aps": likelier, "raps": likelier + 0.01 * max(0, rank + 1 - 2)
                }[score]  # fmt: skip
                assert expected - 1e-9 <= levels[k, n] * top / 2000 < expected + top / 2000


def test_sets_of_a_control_hold_the_classes_below_its_threshold():
    curve = SetCurve(3, "aps")
    p = np.array([[0.7, 0.4], [0.2, 0.35], [0.1, 0.25]])
    for _ in range(20):
        curve.update(p, np.array([1, 0]))
    sets = curve.control(0.1).sets(p)
    np.testing.assert_array_equal(sets, [[True, True], [True, True], [False, False]])
    assert curve.control(0.1).set_size == 2.0
    assert curve.control(0.6).set_size == 1.0


def test_hoeffding_and_bentkus_by_hand():
    """Ten images without any loss: (1 - alpha)^n, which Hoeffding's bound gives exactly."""
    assert hoeffding_bentkus(np.array([0.0]), 10, 0.3)[0] == pytest.approx(0.7**10)
    assert hoeffding_bentkus(np.array([0.3, 0.9]), 10, 0.3).tolist() == [1.0, 1.0]


def test_the_sequence_of_precision_tests_stops_at_the_first_failure():
    """Below t = 0.5 precision is good again, which a test from the top down may not use."""
    curve = RiskCurve(10)
    p = np.array([0.95] * 6 + [0.55] * 6 + [0.25] * 60)
    y = np.array([True] * 6 + [False] * 6 + [True] * 60)
    for _ in range(100):
        curve.update(p, y)
    assert control(curve, "precision", 0.3, 0.1).threshold == 0.6
    flipped = RiskCurve(10)
    for _ in range(100):
        flipped.update(np.array([1.0, 0.2]), np.array([False, True]))
    with pytest.raises(InputError, match="no threshold"):
        control(flipped, "precision", 0.1, 0.1)


def useless_or_refused(find, alpha):
    """Whether a promise at alpha cannot be made, or is kept only in a way that says nothing."""
    try:
        return find(alpha).is_trivial
    except InputError:
        return True


@pytest.mark.parametrize("kind", ["misses", "precision", "sets", "surely sets", "margin"])
def test_the_smallest_alpha_is_the_first_that_is_of_use(kind):
    """Compared with trying every alpha of four decimals near it, and every tenth of all."""
    rng = np.random.default_rng(3)
    curve, sets, margins = RiskCurve(20), SetCurve(3, "aps"), MarginScores(0.9)
    for _ in range(40):
        y = rng.random(30) < 0.4
        curve.update(np.where(rng.random(30) < 0.7, y, ~y) * 0.6 + 0.2 * rng.random(30) * (rng.random() < 0.9), y)
        p = rng.dirichlet(np.ones(3), 30).T
        sets.update(p, rng.integers(0, 3, 30))
        truth = np.eye(6, dtype=bool)
        margins.update(truth if rng.random() < 0.7 else np.zeros((6, 6), bool), truth)
    find = {
        "misses": lambda alpha: control(curve, "misses", alpha, 0.1),
        "precision": lambda alpha: control(curve, "precision", alpha, 0.1),
        "sets": sets.control,
        "surely sets": lambda alpha: sets.control(alpha, 0.1),
        "margin": margins.control,
    }[kind]
    smallest = find(0.95).smallest_alpha
    assert 0.02 < smallest < 0.95
    near = [smallest + step / 10_000 for step in (-30, -3, -2, -1, 0, 1, 2, 30)]
    assert [useless_or_refused(find, alpha) for alpha in near] == [True] * 4 + [False] * 4
    for alpha in np.arange(0.1, 1, 0.1):
        assert useless_or_refused(find, float(alpha)) == (alpha < smallest)


def test_no_alpha_is_of_use_where_nothing_is_told_apart():
    curve, sets, margins = RiskCurve(10), SetCurve(2), MarginScores()
    for _ in range(30):
        curve.update(np.zeros(4), np.array([True, True, True, False]))
        sets.update(np.array([[0.0] * 4, [1.0] * 4]), np.zeros(4, int))
        margins.update(np.zeros((3, 3), bool), np.eye(3, dtype=bool))
    found = [control(curve, "misses", 0.5, 0.1), sets.control(0.5), sets.control(0.5, 0.1), margins.control(0.5)]
    assert [one.is_trivial for one in found] == [True] * 4
    assert all(math.isnan(one.smallest_alpha) for one in found)


def test_too_few_images_are_refused():
    curve = RiskCurve()
    curve.update(np.array([0.9, 0.1]), np.array([True, False]))
    with pytest.raises(InputError, match=r"1 images for alpha 0\.1 and delta 0\.1; expected at least 22"):
        control(curve, "misses", 0.1, 0.1)
    sets = SetCurve(2)
    sets.update(np.array([[0.9], [0.1]]), np.array([0]))
    with pytest.raises(InputError, match="at least 9"):
        sets.control(0.1)
    with pytest.raises(InputError, match="at least 22"):
        sets.control(0.1, 0.1)
    scores = MarginScores()
    scores.update(np.eye(3, dtype=bool), np.eye(3, dtype=bool))
    with pytest.raises(InputError, match="at least 9"):
        scores.control(0.1)


@pytest.mark.parametrize("make", [lambda: SetCurve(2, "thrice"), lambda: MarginScores(shape="star")])
def test_unknown_names_are_refused(make):
    with pytest.raises(InputError, match="expected one of"):
        make()


def test_groups_count_once():
    """Two images of a patient are one unit, with the mean of their losses."""
    group, whole = SetCurve(2), SetCurve(2)
    for label in (0, 1):
        group.update(np.array([[0.9], [0.1]]), np.array([label]))
    for _ in range(20):
        whole.add_group(group)
    result = whole.control(0.6, grouped=True)
    assert (result.images, result.groups, result.coverage) == (40, 20, 0.5)
