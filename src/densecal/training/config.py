"""The configuration of a run: recipes and YAML files read into strict sections, with `key.sub=value` overrides."""

from __future__ import annotations

import contextlib
import json
import warnings
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from densecal import methods, posthoc
from densecal.errors import InputError
from densecal.io.atomic import round_floats
from densecal.io.documents import parse_yaml, read_yaml
from densecal.training.method_settings import drop_replaced

Positive = Annotated[int, Field(ge=1)]
Side = Annotated[int, Field(ge=16, le=4096)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Path_ = str
"""Paths stay text, so that a configuration is written back as it was read."""


class Section(BaseModel):
    """A part of the configuration. Unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class ScenesConfig(Section):
    """Generated scenes instead of files.

    Attributes:
        train: Scenes to train on.
        validation: Scenes to validate on.
        seed: Seed of the generator.
        softness: Scale of the annotators' outline errors in pixels.
        doubtful: Share of scenes with an object that is labelled only sometimes.
        noise: Standard deviation of the pixel noise.
    """

    train: Annotated[int, Field(ge=1, le=1_000_000)] = 320
    validation: Annotated[int, Field(ge=1, le=1_000_000)] = 160
    seed: int = 0
    softness: Annotated[float, Field(ge=0)] = 1.5
    doubtful: Annotated[float, Field(ge=0, le=1)] = 0.5
    noise: Annotated[float, Field(ge=0)] = 0.06


class DataConfig(Section):
    """Where the images are and how they are prepared.

    Attributes:
        images: Folder of images, folder of a published data set, list file, zip, or several zips.
        masks: Folder of masks, where ``images`` is a folder of images.
        validation: List file, share in [0, 1) or number of images held out; or a folder or zip of others; or
            ``duts-tr-validation``, the paper's split of DUTS-TR.
        groups: Groups of images that are alike (patient, video, scene): a file of lines ``name,group``, or a pattern
            whose first capture group in an image's name is its group. The split keeps groups together, and intervals
            resample them.
        scenes: Generated scenes, in place of ``images``.
        size: Side of the square images the network sees.
        sizes: Sides from which training draws one per batch; ``size`` unless given.
        classes: 1 for foreground masks, else the number of classes.
        ignore_index: Mask value of void pixels.
        informationless: Share of the images, drawn again every epoch, that are replaced by images without an object,
            with empty masks (foreground masks only).
        augment: ``paper`` (flip, translation, crop), ``code`` (the authors' program), ``none``, or what a published
            network is trained with: ``edn``, ``icon``, ``ebmgsod``.
        cache: Folder of the packed cache; one in the user's cache folder unless given.
        workers: Decoding processes; all cores unless given.
    """

    images: Path_ | list[Path_] | None = None
    masks: Path_ | None = None
    validation: Path_ | int | float = 0.1
    groups: str | None = None
    scenes: ScenesConfig | None = None
    size: Side = 384
    sizes: Annotated[list[Side], Field(min_length=1)] | None = None
    classes: Annotated[int, Field(ge=1, le=255)] = 1
    ignore_index: Annotated[int, Field(ge=0, le=255)] = 255
    informationless: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augment: Literal["none", "paper", "code", "edn", "icon", "ebmgsod"] = "paper"
    cache: Path_ | None = None
    workers: Positive | None = None

    @model_validator(mode="after")
    def _check_source(self) -> DataConfig:
        if (self.images is None) == (self.scenes is None):
            raise ValueError(
                "images and scenes are both given, or neither; expected images (a folder, list file or zips) or scenes"
            )
        if self.scenes is not None and self.groups is not None:
            raise ValueError(f"groups {self.groups!r} of scenes; expected images: scenes are independent")
        if self.scenes is not None and self.classes > 1:
            raise ValueError(f"scenes for {self.classes} classes; expected images: scenes have foreground masks")
        if self.informationless and self.classes > 1:
            raise ValueError(
                f"informationless images for {self.classes} classes; expected foreground masks, which can be empty"
            )
        return self


class ModelConfig(Section):
    """The network.

    Attributes:
        arch: Architecture, see ``densecal.models.architectures()``.
        encoder: timm name.
        weights: Where the network starts: ``imagenet`` (the encoder's weights from timm's hub, which needs internet),
            ``offline`` (those of an installed package, for tf_efficientnet_lite0 to 2), a ``.pth`` or ``.safetensors``
            file of an encoder or of a whole model, a run folder, or ``null`` for random weights.
        options: Further options of the architecture; numbers up to 4096.
        calibrator: Fitted on the validation images when training ends, kept in the run folder and applied by
            prediction and export. One of ``densecal.posthoc.names()`` that needs only logits.
    """

    arch: str = "unet"
    encoder: str = "resnet50"
    weights: str | None = None
    options: dict[str, Any] = {}
    calibrator: str | None = None

    @model_validator(mode="after")
    def _check_options(self) -> ModelConfig:
        """Refuse huge options: an untrusted checkpoint must not ask for a network that fills the memory."""
        values = [item for value in self.options.values() for item in (value if isinstance(value, list) else [value])]
        if any(isinstance(value, int | float) and not abs(value) <= 4096 for value in values):
            raise ValueError(f"options {self.options}; expected numbers up to 4096")
        return self


class MethodConfig(BaseModel):
    """The calibration method. Further keys are its options.

    Attributes:
        name: The method. Its own options are listed in the section of its name.
        loss: The loss that the method builds on, as weights of its terms, such as ``{bce: 1, dice: 1}``; cross entropy
            unless given. Terms are ``bce`` (cross entropy, or what the method has in its place), ``dice``, ``iou``,
            ``lovasz``, ``tversky`` and ``focal-tversky``. The last two take ``{weight: 1, false_positives: 0.3,
            false_negatives: 0.7}`` too, and ``focal-tversky`` also ``gamma``.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "aslp-mc"
    loss: dict[str, Any] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The method's options."""
        return dict(self.model_extra or {}) | ({} if self.loss is None else {"loss": self.loss})

    @model_validator(mode="after")
    def _check_name_and_options(self) -> MethodConfig:
        if self.name not in methods.names():
            raise ValueError(f"name is {self.name!r}; expected one of {', '.join(methods.names())}")
        allowed = set(methods.options(self.name)) - {"num_samples", "num_classes", "ignore_index", "seed"}
        unknown = sorted(self.options.keys() - allowed)
        if unknown:
            known = f"one of {', '.join(sorted(allowed))}" if allowed else "no options"
            raise ValueError(f"unknown key {unknown[0]!r} for {self.name}; expected {known}")
        return self


class OptimConfig(Section):
    """How the weights are optimised.

    Attributes:
        epochs: Epochs; those of the first stage if the method's schedule is ``two-stage``.
        second_epochs: Epochs of the second stage, a training of its own that starts from the first stage's weights; as
            many as ``epochs`` unless given.
        batch: Images per batch, over all devices.
        accumulate: Batches whose gradients are added up before a step.
        optimizer: ``adam``, ``adamw`` or ``sgd`` (with Nesterov's momentum of 0.9).
        betas: Adam's decay rates.
        lr: Learning rate.
        lrs: Learning rates of parts of the network, such as ``encoder``, that differ from ``lr``; 0 leaves a part
            unchanged.
        weight_decay: Weight decay.
        schedule: ``paper`` (times 0.9 per epoch after the tenth), ``code`` (the authors' program), ``cosine``,
            ``constant``, ``poly``, ``triangular`` or ``late-decay``.
        warmup_steps: Steps over which the learning rate rises from a hundredth of its value.
        ema: Decay of a running average of the weights, which is validated and saved in their place; 0 is off. The
            decay is lower at first, so that the average covers about the last third of the steps taken.
        ema_start: Share of the initial weights in that average.
    """

    epochs: Positive = 30
    second_epochs: Positive | None = None
    batch: Positive = 10
    accumulate: Positive = 1
    optimizer: Literal["adam", "adamw", "sgd"] = "adam"
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    lr: Annotated[float, Field(gt=0)] = 2.5e-5
    lrs: dict[str, Annotated[float, Field(ge=0)]] = {}
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    schedule: Literal["poly", "triangular", "late-decay", "paper", "code", "cosine", "constant"] = "paper"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    ema: Decay = 0.0
    ema_start: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def second_length(self) -> int:
        """Epochs of a second stage."""
        return self.second_epochs or self.epochs

    @model_validator(mode="after")
    def _check_average(self) -> OptimConfig:
        if self.ema_start and not self.ema:
            raise ValueError(f"ema_start is {self.ema_start} without an average; expected ema too, such as 0.998")
        return self


REMOVED_ENGINE_KEYS = ("channels_last", "compile", "depthwise", "fused")
"""Switches of densecal 0.1, which files may still contain."""


class EngineConfig(Section):
    """The hardware, and how it is used.

    Attributes:
        seed: Seed of everything random.
        accelerator: ``auto``, ``cpu`` or ``cuda``.
        devices: Processes on this machine.
        nodes: Machines.
        threads: Threads on a CPU. ``auto`` is one per core, fewer while other processes use cores, and OMP_NUM_THREADS
            if it is set. Runs with the same number have the same bits.
        precision: ``auto`` is bf16 on CUDA and fp32 elsewhere.
        graphs: Replay training steps (on one device, without ``optim.accumulate``), validation and the predictions
            of the trained model as CUDA graphs.
        kernels: Train with densecal's own CUDA kernels. Prediction always uses them.
        bins: Bins of the validation's calibration errors.
        loggers: Any of ``tensorboard``, ``mlflow``, ``wandb``, which get the lines of the log. By default TensorBoard
            if it is installed.
    """

    seed: int = 0
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    devices: Positive = 1
    nodes: Positive = 1
    threads: Literal["auto"] | Annotated[int, Field(ge=1, le=1024)] = "auto"
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    graphs: bool = True
    kernels: bool = True
    bins: Annotated[int, Field(ge=1, le=1000)] = 10
    loggers: list[Literal["tensorboard", "mlflow", "wandb"]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_removed_keys(cls, settings: Any) -> Any:
        """Read the files of densecal 0.1, which had more switches."""
        if not isinstance(settings, dict):
            return settings
        kept = {key: value for key, value in settings.items() if key not in REMOVED_ENGINE_KEYS}
        if settings.get("fused") is False:
            kept.setdefault("kernels", False)
        return kept


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

    Another method (``method.name=als``) keeps the recipe's options that it has; ``dropped_options`` lists the others.

    Raises:
        InputError: Names the key, its value and what was expected.
    """
    settings = _read(recipe)
    drop_replaced(settings, overrides)
    for override in overrides:
        _apply(settings, override)
    return parse_config(settings, recipe)


def dropped_options(recipe: str, overrides: list[str] | tuple[str, ...]) -> list[str]:
    """List the method options of a recipe that overrides drop, which nothing else replaces."""
    return drop_replaced(_read(recipe), overrides)


def parse_config(settings: Any, where: str) -> Config:
    """Check settings that were read from YAML or JSON."""
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        raise _readable(error, where) from None


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
            raise InputError(key, f"{section!r} holds a value", "a section")
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
    """Return the settings with the length that the second stage has, which is 0 where there is none."""
    settings = config.model_dump(mode="json")
    settings["optim"]["second_epochs"] = config.total_epochs - config.optim.epochs
    return settings


def _readable(error: ValidationError, where: str) -> InputError:
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
