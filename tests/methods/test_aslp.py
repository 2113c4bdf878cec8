"""The learning rules: the specification's trajectories, fixed points, clamps, schedules and stability bounds."""

import warnings
from types import SimpleNamespace

import pytest
import torch

from densecal.labels import half_scale
from densecal.methods import aslp as rules
from densecal.methods import create

MC = [f"mc_trajectory_{name}" for name in ("lambda500", "lambda800", "lambda1000", "lambda2000", "lambda10000")]
MC_BETA_1 = {"mc_trajectory_beta1_paper_norm": "paper", "mc_trajectory_beta1_code_norm": "confidence"}


def result(accuracy: float) -> SimpleNamespace:
    return SimpleNamespace(accuracy=accuracy)


def create_quietly(name: str, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create(name, **{"num_samples": 1, "warmup": 0, **options})


def visit(method, gap: float, index: int = 0) -> float:
    """Show a method image `index` with g = gap; return the value of the image."""
    logits, masks = torch.full((1, 1, 2, 2), gap), torch.ones(1, 1, 2, 2)
    method.after_step(logits, masks, torch.tensor([index]))
    return method.values[index].item()


def pure_mc(g, A, alpha, beta, lam, eta=0.002, grad_norm="paper"):
    b = half_scale(beta)
    alpha, A = torch.tensor(alpha, dtype=torch.float64), torch.tensor(A, dtype=torch.float64)
    gradient = rules.normalise(torch.tensor(g, dtype=torch.float64), b, grad_norm)
    r = rules.confidence_regulariser(alpha, A, b)
    return rules.clamp(rules.ascend(alpha, gradient, r, eta, lam), beta).item()


@pytest.mark.parametrize("name", [*MC, *MC_BETA_1])
def test_mc_trajectory(vectors, name):
    case = vectors[name]
    g, A = case["inputs"]["g"], case["inputs"]["A"]
    beta, lam, eta = (case["params"][key] for key in ("beta", "lambda", "eta"))
    grad_norm = MC_BETA_1.get(name, "paper")
    method = create_quietly("aslp-mc", technique={2.0: "hi", 1.0: "m"}[beta], lam=float(lam), grad_norm=grad_norm)
    method.freeze(A)
    alpha = case["inputs"]["alpha0"]
    for expected in case["expected"]["alpha"]:
        alpha = pure_mc(g, A, alpha, beta, lam, eta, grad_norm)
        assert alpha == pytest.approx(expected, abs=1e-12)
        assert visit(method, g) == pytest.approx(expected, abs=3e-5)
    assert method.multiplier == pytest.approx(case["expected"]["multiplier"])


def test_mc_settles_at_the_fixed_point_inside_its_bound_and_never_outside():
    g, A = 6.5, 0.957
    for technique, beta in (("hi", 2.0), ("si", 1.5), ("m", 1.0)):
        bound = rules.stability(0.002, 1.0, beta).max_lam
        for lam in (0.5 * bound, 0.9 * bound, 1.1 * bound):
            method = create_quietly("aslp-mc", technique=technique, lam=lam)
            method.freeze(A)
            path = [visit(method, g) for _ in range(400)][-20:]
            fixed_point = 2 / beta * (1 - A + g / lam)
            assert (max(path) - min(path) < 1e-4) == (lam < bound)
            if lam < bound:
                assert path[-1] == pytest.approx(fixed_point, abs=1e-4)


def test_large_lambda_lowers_the_mean_perturbation():
    means = {}
    for lam in (500, 2000, 10000):
        alpha, path = 0.0, []
        for _ in range(4000):
            alpha = pure_mc(6.5, 0.957, alpha, 2.0, lam)
            path.append(alpha)
        means[lam] = sum(path[1000:]) / 3000
    assert means[500] == pytest.approx(0.056, abs=1e-4)
    assert means[2000] == pytest.approx(0.0409, abs=1e-3)
    assert means[10000] == pytest.approx(0.026, abs=1e-4)


def test_mei_trajectory(vectors):
    case = vectors["mei_trajectory"]
    method = create_quietly("aslp-mei", schedule="two-stage", warmup=1)
    method.start_epoch(0)
    method.after_epoch(result(case["inputs"]["A_lm"]))
    steps = zip(case["inputs"]["A_val_per_step"], case["expected"]["alpha"], strict=True)
    for epoch, (accuracy, expected) in enumerate(steps, start=1):
        method.start_epoch(epoch)
        method.after_epoch(result(accuracy))
        assert visit(method, case["inputs"]["g"]) == pytest.approx(expected, abs=3e-6)


def test_mei_falls_back_from_the_best_accuracy_so_far_under_warmup():
    method = create_quietly("aslp-mei", schedule="warmup", warmup=0)
    for epoch, (accuracy, ideal) in enumerate([(0.9, 0.9), (0.95, 0.95), (0.94, 0.95)]):
        method.start_epoch(epoch)
        method.after_epoch(result(accuracy))
        before = method.alpha.item()
        expected = before + 0.002 * (6 + 2000 * (accuracy - ideal) / ideal)
        assert visit(method, 6.0) == pytest.approx(max(expected, 0), abs=1e-6)
    assert method.alpha.item() < before


@pytest.mark.parametrize(
    ("gradient", "key", "start"),
    [
        ("exact", "exact_gradient_from_0", 0.0),
        ("normalised", "normalised_from_0", 0.0),
        ("literal", "seed_rule_from_0", 0.0),
        ("literal", "seed_rule_from_0.01", 0.01),
    ],
)
def test_als_trajectory(vectors, gradient, key, start):
    case = vectors["als_trajectory"]
    method = create_quietly("als", gradient=gradient, lam=500.0)
    method.freeze(case["inputs"]["A"])
    method.beta.fill_(start)
    actual = [visit(method, case["inputs"]["g"]) for _ in range(10)]
    assert actual == pytest.approx(case["expected"][key], abs=2e-6)


def test_als_exact_gradient_is_autograds_for_one_logit_and_for_classes():
    for K in (1, 4):
        method = create_quietly("als", num_classes=K, eta=1.0, lam=0.0)
        method.freeze(0.5)
        z = torch.randn(1, K, 5, 5) * 0.1 + (torch.arange(K) == 0).view(1, K, 1, 1)
        y = torch.ones(1, 1, 5, 5) if K == 1 else torch.zeros(1, 5, 5, dtype=torch.long)
        beta = torch.full((1,), 0.1, requires_grad=True)
        (slope,) = torch.autograd.grad(method.loss(z, method.perturb_labels(y, beta)), beta)
        method.beta.fill_(0.1)
        method.after_step(z, y, torch.tensor([0]))
        assert method.beta.item() - 0.1 == pytest.approx(slope.item(), abs=1e-6)


def test_grad_norms_are_the_derivative_divided_by_powers_of_b():
    for technique, beta in (("hi", 2.0), ("si", 1.5), ("m", 1.0), ("dm", 1.0)):
        b = beta / 2
        for grad_norm, factor in (("none", b), ("paper", 1), ("confidence", 1 / b)):
            for name in ("aslp-mc", "aslp-mei"):
                method = create_quietly(name, technique=technique, grad_norm=grad_norm)
                method.freeze(0.5)
                assert visit(method, 5.0) == pytest.approx(0.002 * 5 * factor, abs=1e-7)


@pytest.mark.parametrize(
    ("name", "options", "top"),
    [
        ("aslp-mei", {"technique": "hi"}, 0.49),
        ("aslp-mei", {"technique": "si"}, 2 / 3 - 0.01),
        ("aslp-mei", {"technique": "m"}, 0.99),
        ("aslp-mc", {"technique": "hi", "lam": 0.0}, 0.49),
        ("als", {"lam": 0.0}, 0.99),
    ],
)
def test_values_are_clamped_at_both_ends(name, options, top):
    method = create_quietly(name, **options)
    method.freeze(0.0 if name == "als" else 0.5)
    assert visit(method, 1e6) == pytest.approx(top)
    assert visit(method, -1e6) == 0
    assert visit(method, -1.0) == 0


@pytest.mark.parametrize(("technique", "beta"), [("hi", 2.0), ("si", 1.5), ("m", 1.0)])
def test_the_exact_constraint_stops_at_the_threshold(technique, beta):
    method = create_quietly("aslp-mc", technique=technique, constraint="exact")
    method.freeze(0.957)
    path = [visit(method, 6.5) for _ in range(20)]
    assert path[0] == pytest.approx(0.013)
    assert path == sorted(path)
    assert path[-1] == pytest.approx(2 * (1 - 0.957) / beta, abs=1e-6)
    assert visit(method, -1.0) < path[-1]
    assert method.statistics()["expected_confidence"] == pytest.approx(0.957 + 0.002 * beta / 2, abs=1e-6)


def test_the_exact_constraint_of_als():
    method = create_quietly("als", constraint="exact")
    method.freeze(0.96)
    assert [visit(method, 6.0) for _ in range(30)][-1] == pytest.approx(0.08, abs=1e-6)


@pytest.mark.parametrize("name", ["aslp-mc", "als"])
def test_images_that_are_mostly_wrong_lose_their_perturbation(name):
    method = create_quietly(name, preset="stable")
    method.freeze(0.9)
    method.values[0] = 0.02
    steps = 0
    while visit(method, -2.0) > 0:
        steps += 1
    assert steps == pytest.approx(0.02 / (0.002 * 2 * (1 if name == "aslp-mc" else 0.5)), abs=1)


@pytest.mark.parametrize(
    ("name", "options", "bound"),
    [
        ("aslp-mc", {"preset": "paper"}, "lam < 1000, fastest at 500"),
        ("aslp-mc", {"technique": "si", "preset": "paper"}, r"lam < 1333\.33"),
        ("aslp-mc", {"technique": "hi", "num_classes": 4, "preset": "paper"}, "lam < 1000"),
        ("aslp-mc", {"lam": 1000.0}, "lam < 1000"),
        ("als", {"preset": "paper"}, "lam < 2000"),
        ("als", {"num_classes": 4, "preset": "paper"}, r"lam < 1333\.33"),
    ],
)
def test_a_rule_outside_its_stability_bound_warns_once_with_the_bound(name, options, bound):
    with pytest.warns(UserWarning, match=bound) as caught:
        method = create(name, num_samples=1, warmup=0, **options)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method.start_epoch(0)
        method.after_epoch(result(0.9))


@pytest.mark.parametrize(
    ("name", "options"),
    [("aslp-mc", {}), ("aslp-mc", {"lam": 999.0}), ("aslp-mc", {"constraint": "exact"}),
     ("als", {}), ("aslp-mei", {})],
)  # fmt: skip
def test_a_rule_inside_its_bound_is_quiet(name, options):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        create(name, num_samples=1, **options)


def test_the_defaults_are_the_papers_except_a_lambda_that_oscillates():
    for name, lam in (("aslp-mei", 2000.0), ("aslp-mc", 500.0), ("als", 500.0)):
        method = create_quietly(name, warmup=None)
        assert (method.eta, method.lam, method.warmup, method.accuracy_mode) == (0.002, lam, 5, "running")
        method = create_quietly(name, warmup=None, schedule="two-stage")
        assert (method.warmup, method.accuracy_mode) == (30, "frozen")
    for name in ("aslp-mei", "aslp-mc"):
        method = create_quietly(name)
        assert (method.technique, method.noise_bound, method.grad_norm, method.band) == ("hi", 0.5, "paper", None)
    assert (create_quietly("als").gradient, create_quietly("als").constraint, create_quietly("aslp-mc").constraint) == (
        "exact",
        *["penalty"] * 2,
    )
    assert create_quietly("aslp-mc", preset="paper").lam == 2000
    assert create_quietly("aslp-mc", preset="stable", lam=700.0).lam == 700


@pytest.mark.parametrize(("name", "step"), [("aslp-mei", 0.01), ("aslp-mc", 0.01), ("als", 0.005)])
def test_warmup_alone_holds_values_back(name, step):
    method = create_quietly(name, warmup=2, preset="stable")
    for epoch in range(2):
        method.start_epoch(epoch)
        assert visit(method, 5.0) == 0
    method.start_epoch(2)
    # From 0 the first step is eta * g' whatever the accuracy, so no accuracy is needed.
    assert visit(method, 5.0) == pytest.approx(step)


def test_before_the_first_validation_the_accuracy_counts_as_1():
    method = create_quietly("aslp-mc", preset="stable")
    for _ in range(100):
        visit(method, 5.0)
    assert method.alpha.max() == pytest.approx(5.0 / 500)  # where eta * g = eta * lambda * alpha
    assert visit(create_quietly("aslp-mc", constraint="exact"), 5.0) == 0


def test_running_accuracy_follows_every_validation():
    method = create_quietly("aslp-mc", constraint="exact")
    for epoch, accuracy in enumerate([0.9, 0.97, 0.94]):
        method.start_epoch(epoch)
        method.after_epoch(result(accuracy))
        assert visit(method, 1e3) == pytest.approx(1 - accuracy, abs=1e-6)


def test_two_stage_freezes_the_last_accuracy_of_stage_one():
    method = create_quietly("aslp-mc", schedule="two-stage", warmup=2, constraint="exact")
    for epoch, accuracy in enumerate([0.8, 0.9, 0.99, 0.7]):
        method.start_epoch(epoch)
        actual = visit(method, 1e3)
        assert actual == pytest.approx(0 if epoch < 2 else 0.1, abs=1e-6)
        method.after_epoch(result(accuracy))


def test_frozen_accuracy_without_a_stage_one_is_the_first_validation_or_set_by_hand():
    method = create_quietly("aslp-mc", accuracy="frozen", warmup=0, constraint="exact")
    by_hand = create_quietly("aslp-mc", accuracy="frozen", warmup=0, constraint="exact")
    by_hand.freeze(0.8)
    for epoch, accuracy in enumerate([0.9, 0.95]):
        for each in (method, by_hand):
            each.start_epoch(epoch)
            each.after_epoch(result(accuracy))
        assert visit(method, 1e3) == pytest.approx(0.1, abs=1e-6)
        assert visit(by_hand, 1e3) == pytest.approx(0.2, abs=1e-6)


@pytest.mark.parametrize("accuracy", [95.7, -0.1, float("nan")])
def test_an_accuracy_outside_0_to_1_is_refused(accuracy):
    method = create_quietly("aslp-mc")
    with pytest.raises(ValueError, match="accuracy: found"):
        method.after_epoch(result(accuracy))
    with pytest.raises(ValueError, match="accuracy: found"):
        method.freeze(accuracy)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_infinite_and_nan_logits_move_nothing(bad):
    method = create_quietly("aslp-mc")
    method.freeze(0.9)
    value = visit(method, 5.0)
    assert visit(method, bad) == value


@pytest.mark.parametrize("name", ["aslp-mei", "aslp-mc", "aslp-cl", "als"])
def test_an_index_past_the_end_names_num_samples_and_changes_nothing(name):
    method = create_quietly(name, num_samples=5)
    images, masks = torch.zeros(2, 3, 2, 2), torch.ones(2, 1, 2, 2)
    method.prepare(images, masks, torch.tensor([4, -1]))
    before = {key: value.clone() for key, value in method.state_dict().items()}
    for call in (
        lambda: method.prepare(images, masks, torch.tensor([0, 5])),
        lambda: method.after_step(masks, masks, torch.tensor([5, -1])),
    ):
        with pytest.raises(IndexError, match=r"found 5; expected 0 to 4 \(num_samples is 5\), or a negative"):
            call()
    for key, value in method.state_dict().items():
        torch.testing.assert_close(value, before[key], equal_nan=True)


def test_an_index_on_an_accelerator_is_not_read():
    """A tensor on the meta device holds no data, so that reading it is an error, as waiting is elsewhere."""
    method = create_quietly("als", num_samples=5).to("meta")
    assert method._slot(torch.tensor([0, 1], device="meta")).device.type == "meta"


def test_statistics_hold_the_quartiles():
    method = create_quietly("aslp-mc", num_samples=5, lam=500.0)
    method.alpha.copy_(torch.tensor([0.4, 0.0, 0.3, 0.1, 0.2]))
    actual = method.statistics()
    names = ("min", "q25", "median", "q75", "max", "mean")
    assert [actual[f"alpha_{name}"] for name in names] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.2])
    assert actual["negative_share"] == 0  # of no visits


def test_a_gap_of_exactly_0_is_not_negative():
    method = create_quietly("aslp-mc", num_samples=4, lam=500.0)
    logits = torch.tensor([0.0, -1.0, 1.0, -1.0]).view(4, 1, 1, 1)
    method.after_step(logits, torch.ones(4, 1, 1, 1), torch.tensor([0, 1, 2, -1]))
    assert method.statistics()["negative_share"] == pytest.approx(1 / 3)


def test_the_share_of_negative_gaps_is_that_of_all_batches_of_the_epoch():
    method = create_quietly("aslp-mc", num_samples=4, lam=500.0)
    for epoch, wrong in enumerate(([2, 2], [2, 0, 0], [0, 1])):  # images with a negative gap in batches of two
        method.start_epoch(epoch)
        for count in wrong:
            logits = torch.tensor([-1.0] * count + [1.0] * (2 - count)).view(2, 1, 1, 1)
            method.after_step(logits, torch.ones(2, 1, 1, 1), torch.tensor([0, 3]))
        assert method.statistics()["negative_share"] == pytest.approx(sum(wrong) / 2 / len(wrong))


@pytest.mark.parametrize("accuracy", [0.0, 1.0])
def test_accuracies_of_0_and_1_are_accepted(accuracy):
    method = create_quietly("aslp-mc")
    method.after_epoch(result(accuracy))
    assert method.statistics()["accuracy"] == accuracy
    method.freeze(accuracy)


def test_statistics_leave_out_padding():
    method = create_quietly("aslp-mc", num_samples=4, technique="si", lam=500.0)
    assert method.statistics()["accuracy"] == 1
    method.freeze(0.9)
    logits = torch.tensor([5.0, -1.0, 3.0, -9.0]).view(4, 1, 1, 1).expand(4, 1, 2, 2)
    index = torch.tensor([0, 1, 3, -1])
    for epoch, z in enumerate([-logits.abs(), logits, logits]):
        method.start_epoch(epoch)
        method.after_step(z, torch.ones(4, 1, 2, 2), index)
    actual = method.statistics()
    alpha = torch.tensor([0.02, 0.0, 0.0, 0.012])
    assert actual["alpha_mean"] == pytest.approx(alpha.mean().item())
    assert [actual["alpha_min"], actual["alpha_median"], actual["alpha_max"]] == pytest.approx([0, 0.006, 0.02])
    assert actual["expected_confidence"] == pytest.approx(1 - 0.75 * alpha.mean().item())
    assert actual["negative_share"] == pytest.approx(1 / 3)
    assert actual["accuracy"] == pytest.approx(0.9)
    assert actual["multiplier"] == pytest.approx(1 - 0.002 * 500 * 0.75)
    assert "beta_mean" in create_quietly("als").statistics()
    assert "multiplier" not in create_quietly("aslp-mei").statistics()
