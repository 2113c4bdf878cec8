"""The reference of settings is complete and right about defaults and limits, and its page is current."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from densecal import methods
from densecal.cli import app
from densecal.errors import InputError
from densecal.training.config import Config, load_config
from densecal.training.settings import markdown, reference

PAGE = Path(__file__).parents[2] / "docs" / "settings.md"


def settings_by_key(section: str) -> dict[str, tuple[str, str]]:
    return {setting.key: (setting.default, setting.allowed) for part in reference(section) for setting in part.settings}


def test_every_setting_of_the_schema_is_there_and_explained():
    keys = {setting.key for part in reference() if not part.name.startswith("method ") for setting in part.settings}
    expected = {
        f"{section}.{key}"
        for section in Config.model_fields
        for key in Config.model_fields[section].annotation.model_fields
    }
    assert expected <= keys
    assert keys - expected == {key for key in keys if key.startswith("data.scenes.")}
    for part in reference():
        assert part.summary
        for setting in part.settings:
            assert setting.meaning.endswith("."), setting.key
            assert setting.allowed, setting.key


def test_every_option_of_every_method_is_there():
    by_name = {part.name.removeprefix("method "): part for part in reference("method")}
    assert {"method", *methods.names()} == set(by_name)
    assert {setting.key for setting in by_name["method"].settings} == {"method.name", "method.loss"}
    for name in methods.names():
        options = set(methods.options(name)) - {"num_samples", "num_classes", "ignore_index", "seed", "loss"}
        assert {setting.key for setting in by_name[name].settings} == {f"method.{option}" for option in options}


def test_defaults_and_allowed_values_are_those_of_the_schema():
    optim = settings_by_key("optim")
    assert optim["optim.epochs"] == ("30", "whole number at least 1")
    assert optim["optim.ema"] == ("0", "number at least 0, below 1")
    assert optim["optim.optimizer"] == ("adam", "one of adam, adamw, sgd")
    assert optim["optim.betas"] == ("[0.9, 0.999]", "a list of 2: number at least 0, below 1")
    assert settings_by_key("data")["data.scenes.doubtful"] == ("0.5", "number at least 0, at most 1")
    assert settings_by_key("engine")["engine.graphs"] == ("true", "true or false")
    assert settings_by_key("model")["model.weights"] == ("null", "text or null")
    assert settings_by_key("focal") == {"method.gamma": ("3", "number")}
    with pytest.raises(InputError, match=r"optin; expected one of data, .*optim.*aslp-mc"):
        reference("optin")


def test_a_setting_can_be_written_as_its_default():
    for part in reference():
        if part.name in ("model", "optim", "engine"):
            given = [f"{setting.key}={setting.default}" for setting in part.settings]
            plain = load_config("demo", [f"{part.name}.seed=0"] if part.name == "engine" else [])
            changed = load_config("demo", given)
            schema = type(getattr(plain, part.name))
            assert getattr(changed, part.name) == schema()


def test_the_page_of_the_documentation_is_current():
    assert PAGE.read_text(encoding="utf-8") == markdown(), "run: python docs/tools/make_settings.py"


def test_the_command_prints_a_section_and_trains_nothing():
    result = CliRunner().invoke(app, ["train", "--settings", "optim"])
    assert result.exit_code == 0
    assert "optim.weight_decay" in result.output
    assert "data.images" not in result.output
    assert "data.images" in CliRunner().invoke(app, ["train", "--settings"]).output
    result = CliRunner().invoke(app, ["train", "demo"])
    assert isinstance(result.exception, InputError)
    assert "--out: nothing" in str(result.exception)
