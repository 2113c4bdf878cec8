"""The registry: names, options, and errors that say what was expected."""

import pytest
import torch

from densecal.errors import InputError
from densecal.posthoc import Calibrator, create, load, names, options, register, save
from densecal.posthoc.registry import CALIBRATORS

NEWER = {
    "argmax-preserving", "class-matrix", "class-temperature", "dirichlet", "ensemble-temperature", "matrix",
    "order-preserving", "prior-shift", "spline", "venn-abers",
}  # fmt: skip
OURS = {"temperature", "vector", "platt", "isotonic", "histogram", "beta", "local-temperature", "selective"}


def test_the_calibrators_of_the_contract_are_registered():
    assert set(names()) >= OURS | NEWER
    assert names() == sorted(names())


@pytest.mark.parametrize("name", sorted(OURS))
def test_every_calibrator_declares_what_it_supports(name):
    classes = 3 if name == "vector" else 1
    calibrator = create(name, **({"num_classes": 3} if classes == 3 else {}))
    assert calibrator.method == name
    assert calibrator.num_classes == classes
    assert calibrator.binary == (name != "vector")
    assert calibrator.multiclass == (name in ("temperature", "vector", "local-temperature", "selective"))
    assert calibrator.needs_images == (name in ("local-temperature", "selective"))
    assert calibrator.from_histogram == (name in ("temperature", "platt", "isotonic", "histogram", "beta"))
    if calibrator.multiclass:
        assert not create(name, num_classes=3).from_histogram


def test_an_unknown_name_lists_the_names():
    with pytest.raises(InputError, match=r"'platts'; expected one of argmax-preserving.*temperature"):
        create("platts")


def test_an_unknown_option_is_named_with_the_allowed_ones():
    assert options("histogram") == ["bins", "mass"]
    with pytest.raises(TypeError, match="unknown option 'num_bins'; expected one of bins, mass"):
        create("histogram", num_bins=5)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("histogram", {"bins": 1}),
        ("vector", {"num_classes": 1}),
        ("temperature", {"num_classes": 0}),
        ("temperature", {"num_classes": 10**6}),
        ("local-temperature", {"epochs": 0}),
        ("local-temperature", {"lr": 0.0}),
        ("local-temperature", {"lr": float("nan")}),
        ("selective", {"epochs": 0}),
        ("selective", {"lr": 0.0}),
        ("selective", {"weight": 0.0}),
        ("selective", {"temperature": 0.0}),
        ("selective", {"weight": -1.0}),
    ],
)
def test_a_bad_value_is_refused(name, given):
    with pytest.raises(InputError, match=f"{name}: .*expected"):
        create(name, **given)


def test_options_may_equal_their_limits():
    assert create("temperature", num_classes=4096).num_classes == 4096
    assert create("vector", num_classes=2).num_classes == 2
    assert create("histogram", bins=2).values.size == 2
    assert create("histogram", bins=1 << 20).values.size == 1 << 20
    for name, given in (("temperature", {"num_classes": 4097}), ("histogram", {"bins": (1 << 20) + 1})):
        with pytest.raises(InputError, match=f"{name}: .*expected"):
            create(name, **given)


def test_defaults_are_those_of_the_documentation():
    histogram, platt = create("histogram"), create("platt")
    assert (histogram.bins, histogram.mass, platt.targets) == (10, False, False)
    local, selective = create("local-temperature"), create("selective")
    assert (local.epochs, local.lr, local.seed, float(local.start)) == (20, 1e-4, 0, 1.0)
    actual = selective.epochs, selective.lr, selective.seed, selective.weight, float(selective.temperature)
    assert actual == (20, 1e-3, 0, 2.0, 2.0)


def test_a_fit_says_what_it_needs():
    with pytest.raises(TypeError, match="found tuple; expected a callable that yields batches"):
        create("platt").fit((torch.zeros(3), torch.zeros(3)))


def test_a_users_own_calibrator_is_one_decorated_class(tmp_path, monkeypatch):
    monkeypatch.setattr(CALIBRATORS, "_items", dict(CALIBRATORS._items))  # other tests list what is registered

    @register("test-half")
    class Half(Calibrator):
        """Moves probabilities half-way to 0.5; its fit ignores the data."""

        tables = ("share",)

        def __init__(self) -> None:
            super().__init__()
            self.set_table("share", 0.5)

        def probabilities(self, z, images):
            return 0.5 + self.table("share", z) * (self.squash(z) - 0.5)

        def _fit(self, data, ignore_index):
            self.set_table("share", 0.25)

    save(create("test-half"), tmp_path / "half.json")
    assert float(load(tmp_path / "half.json")(torch.full((1, 1, 1, 1), 50.0))) == 0.75
    with pytest.raises(ValueError, match="already registered"):
        register("test-half")(Half)
