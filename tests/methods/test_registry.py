"""The registry: names, options, and errors that say what was expected."""

import pytest
import torch

from densecal.methods import Method, create, names, options, register
from densecal.methods.registry import METHODS

OURS = {"bce", "slp", "label-smoothing", "aslp-mei", "aslp-mc", "als"}


def test_the_methods_of_the_paper_are_registered():
    assert set(names()) >= OURS
    assert names() == sorted(names())


def test_an_unknown_name_lists_the_names():
    with pytest.raises(ValueError, match=r"'aslp'; expected one of .*als.*aslp-mc.*bce"):
        create("aslp", num_samples=3)


def test_an_unknown_option_is_named_with_the_allowed_ones():
    with pytest.raises(TypeError, match=r"'lambda'; expected one of constraint, technique.*eta, lam.*num_samples"):
        create("aslp-mc", num_samples=3, **{"lambda": 500})
    with pytest.raises(TypeError, match="unknown option 'eta'"):
        create("bce", num_samples=3, eta=1.0)


def test_num_samples_is_required():
    with pytest.raises(TypeError, match="num_samples"):
        create("bce")


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_method_takes_the_common_options(name):
    assert set(options(name)) >= {"num_samples", "num_classes", "ignore_index", "seed"}
    keywords = {"preset": "stable"} if "preset" in options(name) else {}
    method = create(name, num_samples=3, num_classes=4, ignore_index=7, seed=5, **keywords)
    assert (method.num_samples, method.num_classes, method.ignore_index, method.seed) == (3, 4, 7, 5)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("bce", "num_samples", 0),
        ("bce", "num_classes", 0),
        ("slp", "technique", "hard"),
        ("slp", "alpha", 0.5),
        ("slp", "noise_bound", 0.7),
        ("label-smoothing", "beta", 1.0),
        ("aslp-mc", "grad_norm", "code"),
        ("aslp-mc", "preset", "fast"),
        ("aslp-mc", "schedule", "twostage"),
        ("aslp-mc", "accuracy", "best"),
        ("aslp-mc", "constraint", "hard"),
        ("aslp-mc", "eta", 0.0),
        ("aslp-mei", "lam", -1.0),
        ("aslp-mei", "warmup", -1),
        ("als", "gradient", "paper"),
    ],
)
def test_a_bad_value_is_refused_by_its_option_name(name, option, value):
    with pytest.raises(ValueError, match=f"{option}: found"):
        create(name, **{"num_samples": 3, option: value})


def test_dynamic_moderation_is_for_one_sigmoid_logit():
    for name in ("slp", "aslp-mei", "aslp-mc"):
        for classes in (2, 3):
            with pytest.raises(ValueError, match=f"'dm' with {classes} classes; expected 'm'"):
                create(name, num_samples=3, num_classes=classes, technique="dm")


def test_the_largest_probability_depends_on_the_number_of_classes():
    for classes, top in ((1, 0.5), (2, 0.5), (4, 0.75)):
        assert create("slp", num_samples=3, num_classes=classes, alpha=top - 1e-6).probability == top - 1e-6
        with pytest.raises(ValueError, match=f"alpha: found {top}; expected 0 <= alpha < {top}"):
            create("slp", num_samples=3, num_classes=classes, alpha=top)


def test_a_users_own_method_is_one_decorated_class(monkeypatch):
    monkeypatch.setattr(METHODS, "_items", dict(METHODS._items))  # other tests list what is registered

    @register("test-scaled")
    class Scaled(Method):
        def __init__(self, *, scale: float = 2.0, **common: int) -> None:
            super().__init__(**common)
            self.scale = scale

        def loss(self, logits, targets, weight=None):
            return self.scale * super().loss(logits, targets, weight)

    z, y = torch.randn(2, 1, 3, 3), torch.rand(2, 1, 3, 3)
    assert options("test-scaled")[0] == "scale"
    plain = create("bce", num_samples=2).loss(z, y)
    assert torch.equal(create("test-scaled", num_samples=2, scale=4.0).loss(z, y), 4 * plain)
    with pytest.raises(ValueError, match="already registered"):
        register("test-scaled")(Scaled)
