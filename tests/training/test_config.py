"""Configuration: recipes, overrides, and errors that name the key and the values it may have."""

import pytest

from densecal.errors import InputError
from densecal.training.config import dropped_options, dump_config, load_config, parse_config, recipes
from tests.running import run
from tests.training.common import small_config


def test_every_recipe_is_valid_once_it_has_data():
    assert "demo" in recipes()
    for name in recipes():
        assert load_config(name).optim.epochs >= 1


def test_overrides_change_single_keys():
    config = load_config("demo", ["optim.lr=1e-4", "optim.epochs=7", "method.technique=si", "data.augment=none"])
    assert config.optim.lr == 1e-4
    assert config.optim.epochs == 7
    assert config.method.options["technique"] == "si"


@pytest.mark.parametrize(("fused", "kernels"), [(True, True), (False, False)])
def test_files_of_the_first_version_still_load(fused, kernels):
    settings = small_config().model_dump(mode="json")
    del settings["engine"]["kernels"]
    settings["engine"] |= {"fused": fused, "depthwise": False, "compile": True, "channels_last": False}
    engine = parse_config(settings, "config.yaml").engine
    assert engine.kernels == kernels


@pytest.mark.parametrize("key", ["fused", "depthwise", "compile", "channels_last"])
def test_a_removed_switch_names_its_successor(key):
    with pytest.raises(InputError, match=rf"engine.{key}: .*; expected engine.kernels"):
        load_config("demo", [f"engine.{key}=true"])


def method_options(recipe, *overrides):
    return load_config(recipe, list(overrides)).method.options


@pytest.mark.filterwarnings("ignore:eta")
def test_another_method_keeps_the_options_that_it_has():
    paper = {"technique": "hi", "eta": 0.002, "lam": 2000, "grad_norm": "paper", "schedule": "two-stage"}
    assert method_options("sod-paper") == paper
    assert method_options("sod-paper", "method.name=aslp-mc") == paper
    assert method_options("sod-paper", "method.name=aslp-mei") == paper
    smoothing = {"eta": 0.002, "lam": 2000, "schedule": "two-stage"}
    assert method_options("sod-paper", "method.name=als") == smoothing
    assert load_config("sod-paper", ["method.name=als"]).total_epochs == 60
    assert method_options("sod-paper", "method.name=slp") == {"technique": "hi"}
    assert method_options("sod-paper", "method.name=bce") == {}
    assert method_options("demo", "method.warmup=2", "method.name=aslp-mei") == {
        "technique": "hi", "preset": "stable", "warmup": 2,
    }  # fmt: skip
    for override in ("method={}", "method={name: als}"):
        assert method_options("sod-paper", override) == {}


@pytest.mark.filterwarnings("ignore:eta")
def test_an_option_that_sets_others_replaces_those_of_the_recipe():
    assert "lam" not in method_options("sod-paper", "method.preset=stable")
    assert method_options("sod-paper", "method.preset=stable", "method.lam=7")["lam"] == 7
    code = method_options("sod-code", "method.schedule=two-stage")
    assert code.keys() == {"technique", "noise_bound", "eta", "lam", "grad_norm", "schedule"}
    assert load_config("edn", ["method.schedule=two-stage"]).total_epochs == 180


def test_an_option_that_the_new_method_does_not_have_is_still_refused_if_the_user_gives_it():
    with pytest.raises(InputError, match="unknown key 'technique' for bce"):
        load_config("sod-paper", ["method.technique=si", "method.name=bce"])


@pytest.mark.parametrize(
    ("recipe", "overrides", "dropped"),
    [
        ("sod-paper", [], []),
        ("sod-paper", ["method.name=als"], ["technique", "grad_norm"]),
        ("sod-paper", ["method.name=bce"], ["technique", "eta", "lam", "grad_norm", "schedule"]),
        ("sod-paper", ["method.name=slp", "method.alpha=0.1"], ["eta", "lam", "grad_norm", "schedule"]),
        ("sod-paper", ["method.preset=stable"], ["lam"]),
        ("sod-paper", ["method.preset=stable", "method.lam=3"], []),
        ("sod-paper", ["method={name: als}"], []),
        ("sod", ["method.name=als"], []),
    ],
)  # fmt: skip
def test_what_is_dropped_is_listed(recipe, overrides, dropped):
    assert dropped_options(recipe, overrides) == dropped


def test_the_command_names_what_it_drops_in_one_line(tmp_path):
    overrides = ["method.name=als", f"data.images={tmp_path / 'nowhere'}"]
    code, _, errors = run("train", "sod-paper", *overrides, "--out", tmp_path / "run")
    assert code == 2
    assert errors.splitlines()[0] == "sod-paper: dropped for als: technique, grad_norm"
    assert len(errors.splitlines()) == 2


@pytest.mark.parametrize(
    ("override", "key", "expected"),
    [
        ("optim.lrr=1", "optim.lrr", "lr"),
        ("optim.epochs=0", "optim.epochs", "greater than or equal to 1"),
        ("optim.schedule=sometimes", "optim.schedule", "'paper', 'code', 'cosine' or 'constant'"),
        ("optim.lr=fast", "optim.lr", "valid number"),
        ("data.scenes.trian=3", "data.scenes.trian", "train"),
        ("data.images=x", "data", "images"),
        ("method.name=magic", "method", "aslp-mc"),
        ("method.lambda=3", "method", "lam"),
        ("method.eta=-1", "method", "positive"),
        ("method.eta=abc", "eta", "types"),
        ("engine.precision=fp8", "engine.precision", "'auto'"),
        ("optim", "optim", "key.sub=value"),
        ("extra.key=1", "extra", "data"),
    ],
)
def test_a_bad_setting_names_the_key_and_what_is_allowed(override, key, expected):
    with pytest.raises(InputError) as error:
        load_config("demo", [override])
    assert key in str(error.value)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_an_error_in_several_sections_names_the_file_and_the_key(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("data: {scenes: {}}\nmethod: {name: aslp-mc, technique: hx}\n")
    with pytest.raises(InputError) as error:
        load_config(str(path))
    assert str(error.value).startswith(f"{path}: method.technique: found 'hx'; expected ")


def test_files_that_are_not_configurations(tmp_path):
    for text, message in [("data: [", "not YAML"), ("- 1", "a list"), ("", "a NoneType"), ("data: 3", "data")]:
        path = tmp_path / "x.yaml"
        path.write_text(text)
        with pytest.raises(InputError, match=message):
            load_config(str(path))
    with pytest.raises(InputError, match="no such file"):
        load_config(str(tmp_path / "nowhere.yaml"))
    with pytest.raises(InputError, match=r"no such recipe; expected a \.yaml file or one of"):
        load_config("nowhere")


def test_yaml_cannot_make_objects(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_text("data: !!python/object/apply:os.system ['touch owned']")
    with pytest.raises(InputError, match="not YAML"):
        load_config(str(path))


def test_a_configuration_survives_being_written(tmp_path):
    import yaml

    config = small_config("method.technique=m")
    assert parse_config(yaml.safe_load(dump_config(config)), "x") == config


def test_a_method_that_does_not_fit_the_classes_is_refused_before_any_data_is_read():
    with pytest.raises(InputError, match="technique"):
        load_config("demo", ["data.scenes=null", "data.images=x", "data.classes=3", "method.technique=dm"])


def test_two_stages_are_one_configuration():
    config = load_config(
        "demo", ["method.name=aslp-mc", "method.schedule=two-stage", "optim.epochs=4", "optim.second_epochs=3"]
    )
    assert config.total_epochs == 7
    assert config.method_options["warmup"] == 4
    with pytest.raises(InputError, match=r"optim\.epochs"):
        load_config("demo", ["method.schedule=two-stage", "method.warmup=4"])


def test_the_base_loss_is_an_option_of_every_method():
    config = load_config("sod", ["method.name=aslp-mc", "method.loss.bce=1", "method.loss.dice=0.5"])
    assert config.method_options["loss"] == {"bce": 1, "dice": 0.5}
    assert load_config("sod", ["method.loss={bce: 1, iou: 2}"]).method_options["loss"] == {"bce": 1, "iou": 2}
    with pytest.raises(InputError, match=r"method.loss: found 'dise'; expected one of bce, dice"):
        load_config("sod", ["method.loss.dise=1"])
