"""The configuration of a run: recipes and YAML files read into strict sections, with `key.sub=value` overrides."""

from __future__ import annotations

import contextlib
import json
import warnings
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError, model_validator

from densecal import methods, posthoc
from densecal.errors import InputError
from densecal.io.atomic import round_floats
from densecal.io.documents import parse_yaml, read_yaml
from densecal.training.method_settings import drop_replaced
from densecal.training.sections import (
    REMOVED_ENGINE_KEYS,
    DataConfig,
    EngineConfig,
    MethodConfig,
    ModelConfig,
    OptimConfig,
    Section,
)


class Config(Section):
    """The configuration of a run."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    method: MethodConfig = MethodConfig()
    optim: OptimConfig = OptimConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _check_method(self) -> Config:
        """Create the method once, so that wrong options are reported before any data is read."""
        try:
            with warnings.catch_warnings(action="ignore"):
                methods.create(self.method.name, num_samples=1, num_classes=self.data.classes, **self.method_options)
        except (TypeError, OverflowError) as error:
            raise ValueError(
                f"method options {self.method.options} ({error}); expected values of the right types"
            ) from None
        except ValueError as error:
            raise ValueError(f"method.{error}") from None
        return self

    @model_validator(mode="after")
    def _check_calibrator(self) -> Config:
        fitting = posthoc.applicable(self.data.classes)
        if self.model.calibrator not in (None, *fitting):
            raise ValueError(f"model.calibrator is {self.model.calibrator!r}; expected one of {', '.join(fitting)}")
        return self

    @model_validator(mode="after")
    def _check_warmup(self) -> Config:
        if self.two_stage and self.method.options.get("warmup") is not None:
            raise ValueError(
                "method.warmup with schedule two-stage; expected optim.epochs alone, which is the first stage"
            )
        return self

    @property
    def two_stage(self) -> bool:
        """Whether there is a second stage, in which the method uses the accuracy frozen after the first."""
        return self.method.options.get("schedule") == "two-stage"

    @property
    def total_epochs(self) -> int:
        """Epochs of all stages."""
        return self.optim.epochs + (self.optim.second_length if self.two_stage else 0)

    @property
    def method_options(self) -> dict[str, Any]:
        """Options for ``methods.create``. The first of two stages is the method's warm-up."""
        options = self.method.options
        return {**options, "warmup": self.optim.epochs} if self.two_stage else options


def recipes() -> list[str]:
    """List the recipes that come with densecal."""
    folder = resources.files("densecal") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_config(recipe: str, overrides: list[str] | tuple[str, ...] = ()) -> Config:
    """Read a recipe by name or a YAML file, and apply overrides such as ``optim.lr=1e-4``.

    If they choose another method (``method.name=als``), it keeps those of the recipe's method options that it has;
    ``dropped_options`` lists the others.

    Raises:
        InputError: Names the key, its value and what was expected.
    """
    settings = _read(recipe)
    drop_replaced(settings, overrides)
    for override in overrides:
        _apply(settings, override)
    return parse_config(settings, recipe)


def dropped_options(recipe: str, overrides: list[str] | tuple[str, ...]) -> list[str]:
    """List the method options of a recipe that overrides drop without replacing them."""
    return drop_replaced(_read(recipe), overrides)


def parse_config(settings: Any, where: str) -> Config:
    """Check settings that were read from YAML or JSON."""
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        raise _input_error(error, where) from None


def dump_config(config: Config) -> str:
    """Write the configuration as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _read(recipe: str) -> dict[str, Any]:
    path = Path(recipe)
    if path.suffix in (".yaml", ".yml"):
        settings = read_yaml(path, "a YAML file of sections")
    elif recipe in recipes():
        file = resources.files("densecal") / "recipes" / f"{recipe}.yaml"
        settings = parse_yaml(file.read_text(encoding="utf-8"), recipe, "a YAML file of sections")
    else:
        raise InputError(recipe, "no such recipe", f"a .yaml file or one of {', '.join(recipes())}")
    if not isinstance(settings, dict):
        raise InputError(recipe, f"a {type(settings).__name__}", "a YAML file of sections (data, model, ...)")
    return settings


def _apply(settings: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise InputError(override, "no value", "key.sub=value, such as optim.lr=1e-4")
    if key in (f"engine.{name}" for name in REMOVED_ENGINE_KEYS):
        raise InputError(
            key, "an option that no longer exists", "engine.kernels, which turns our CUDA kernels on and off"
        )
    try:
        value = parse_yaml(text, key, "a value")
    except InputError:
        value = text
    # YAML reads 1e-4 as text, because it has no dot
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    *sections, last = key.split(".")
    target = settings
    for section in sections:
        inner = target.setdefault(section, {})
        if inner is None:
            inner = target[section] = {}
        if not isinstance(inner, dict):
            raise InputError(key, f"{section!r} is a value", "a section")
        target = inner
    target[last] = value


def first_difference(was: Config, now: Config) -> tuple[str, Any, Any] | None:
    """Return the first setting that makes two configurations train different models, with both values.

    A run may be resumed on other hardware: of ``engine``, only ``seed`` and ``bins`` count.
    """
    before, after = (json.loads(json.dumps(round_floats(_comparable(config)))) for config in (was, now))
    for section, keys in before.items():
        for key in sorted(keys.keys() | after[section].keys()):
            counts = section != "engine" or key in ("seed", "bins")
            if counts and keys.get(key) != after[section].get(key):
                return f"{section}.{key}", keys.get(key), after[section].get(key)
    return None


def _comparable(config: Config) -> dict[str, Any]:
    """Return the settings with the actual length of the second stage, which is 0 without one."""
    settings = config.model_dump(mode="json")
    settings["optim"]["second_epochs"] = config.total_epochs - config.optim.epochs
    return settings


def _input_error(error: ValidationError, where: str) -> InputError:
    """Turn pydantic's first problem into an error that names the key, its value and what was expected."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    location = f"{where}: {key}" if key else where
    if problem["type"] == "extra_forbidden":
        section: Any = Config
        for part in problem["loc"][:-1]:
            section = _section_class(section, str(part))
        return InputError(location, "an unknown key", f"one of {', '.join(section.model_fields)}")
    if problem["type"] == "value_error":
        actual, _, expected = problem["msg"].removeprefix("Value error, ").partition("; expected ")
        return InputError(location, actual, expected)
    return InputError(location, f"{problem['input']!r}", _expectation(problem["msg"]))


def _section_class(section: Any, name: str) -> Any:
    """Return the class of a subsection, which may be optional."""
    annotation = section.model_fields[name].annotation
    options = [annotation, *getattr(annotation, "__args__", ())]
    return next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))


def _expectation(message: str) -> str:
    """Return what pydantic's message says was expected, starting in lower case."""
    text = message.removeprefix("Input should be ")
    return text[:1].lower() + text[1:]
