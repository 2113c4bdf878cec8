"""The definition of a benchmark: a strict YAML file of methods, seeds, data sets and calibrators."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from densecal import methods
from densecal.errors import InputError
from densecal.evaluation.record import VALIDATION
from densecal.io.documents import read_yaml
from densecal.training.sections import Positive, Section

REFERENCE = "bce"
"""The label that tuned methods are compared with, and the horizontal line in figures."""

Value = str | float | int | bool


class SceneSet(Section):
    """Generated scenes to evaluate on.

    Attributes:
        count: Scenes.
        seed: Seed of the generator; must differ from the recipe's, or the scenes are those of training.
        softness: Scale of the annotators' outline errors in pixels.
        doubtful: Share of scenes with an object that is labelled only sometimes.
        noise: Standard deviation of the pixel noise.
    """

    count: Positive = 200
    seed: Annotated[int, Field(ge=0)] = 1000
    softness: Annotated[float, Field(ge=0)] = 1.5
    doubtful: Annotated[float, Field(ge=0, le=1)] = 0.5
    noise: Annotated[float, Field(ge=0)] = 0.06


class Shift(Section):
    """A corruption of the images; see ``densecal.data.shift``.

    Attributes:
        kind: ``noise``, ``blur``, ``jpeg``, ``brightness`` or ``contrast``.
        severity: 1 to 5.
    """

    kind: Literal["noise", "blur", "jpeg", "brightness", "contrast"]
    severity: Annotated[int, Field(ge=1, le=5)]


class Dataset(Section):
    """A data set to evaluate on.

    Attributes:
        name: Its name in tables.
        images: Folder, list file, zip, or several zips.
        masks: Folder of masks, if ``images`` is a folder.
        scenes: Generated scenes, in place of ``images``.
        informationless: The validation images of the run without their objects, in place of ``images`` (see
            ``densecal.data.informationless``).
        ood: Whether no image shows an object. Masks are then not read, and every pixel is background.
        shift: How the images are corrupted, if at all.
        groups: Groups of similar ``images``, which intervals resample, given like ``data.groups`` in a recipe.
    """

    name: Annotated[str, Field(min_length=1)]
    images: str | list[str] | None = None
    masks: str | None = None
    scenes: SceneSet | None = None
    informationless: bool = False
    ood: bool = False
    shift: Shift | None = None
    groups: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Dataset:
        if [self.images is not None, self.scenes is not None, self.informationless].count(True) != 1:
            raise ValueError("none or several of images, scenes and informationless; expected exactly one of them")
        if self.images is None and (self.ood or self.masks is not None or self.groups is not None):
            raise ValueError("ood, masks or groups without images; expected images as well")
        return self

    @property
    def shows_no_object(self) -> bool:
        """Whether no image shows an object."""
        return self.ood or self.informationless


class MethodEntry(Section):
    """A row of the table: a method, with settings that override the recipe's.

    Attributes:
        name: Its name in tables, and the method's name unless ``set`` has a ``method.name``.
        set: Overrides such as ``method.technique=si``.
        grid: Values by key; every combination becomes a separate row.
    """

    name: Annotated[str, Field(min_length=1)]
    set: list[str] = Field(default=[])
    grid: dict[str, Annotated[list[Value], Field(min_length=1)]] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _plain_name(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _method_exists(self) -> MethodEntry:
        if not self._names_method and self.name not in methods.names():
            known = {f"method.{option}" for method in methods.names() for option in methods.options(method)}
            keys = [override.partition("=")[0] for override in self.set]
            unknown = [key for key in keys if key.startswith("method.") and key not in known]
            problem = (
                f"{unknown[0]!r} in set, which no method takes" if unknown else f"{self.name!r}, which is not a method"
            )
            raise ValueError(
                f"{problem}; expected method.name=METHOD in set, or one of {', '.join(methods.names())} as name"
            )
        return self

    @property
    def overrides(self) -> list[str]:
        """Everything that this entry sets, the method first."""
        return self.set if self._names_method else [f"method.name={self.name}", *self.set]

    @property
    def _names_method(self) -> bool:
        return any(override.startswith("method.name=") for override in self.set)


class Tuning(Section):
    """A setting of a method that is tuned on the validation images with the first seed.

    Attributes:
        key: The setting, such as ``method.weight``.
        values: The values to try. Every tuned method has the same number of them.
    """

    key: str
    values: Annotated[list[Value], Field(min_length=2)]


class Matrix(Section):
    """A whole benchmark.

    Attributes:
        recipe: A recipe's name or a YAML file.
        overrides: Settings for every method, such as ``optim.epochs=10``.
        methods: Names, or entries with a name, ``set`` and ``grid``.
        seeds: Seeds of the trainings.
        datasets: Data sets on which every model is evaluated, besides the validation images.
        calibrators: Calibrators that are fitted on the validation images and evaluated with every model.
        ensembles: Labels whose seeds are also evaluated together, by their mean probability.
        mc_dropout: Labels whose models are also evaluated with dropout on, by the mean probability of ten draws.
        tune: Strengths to tune, by label.
        starts_from: Name of a method of plain cross entropy. Its run with the same seed is the first stage of every
            row whose method has two stages, unless the row sets ``method.schedule=warmup``.
        bins: Numbers of bins of the calibration errors. Tables use the first.
        keep: ``last`` keeps a checkpoint of every run, ``none`` removes it once it is evaluated.
    """

    recipe: str
    overrides: list[str] = Field(default=[])
    methods: Annotated[list[MethodEntry], Field(min_length=1)]
    seeds: list[Annotated[int, Field(ge=0)]] = Field(default=[0], min_length=1)
    datasets: list[Dataset] = Field(default=[])
    calibrators: list[str] = Field(default=[])
    ensembles: list[str] = Field(default=[])
    mc_dropout: list[str] = Field(default=[])
    tune: dict[str, Tuning] = Field(default={})
    starts_from: str | None = None
    bins: list[Annotated[int, Field(ge=1, le=1000)]] = Field(default=[10], min_length=1)
    keep: Literal["last", "none"] = "last"

    @field_validator("methods", "datasets")
    @classmethod
    def _names_differ(cls, entries: list[Any]) -> list[Any]:
        _check_different([entry.name for entry in entries])
        return entries

    @field_validator("seeds", "bins", "calibrators", "ensembles", "mc_dropout")
    @classmethod
    def _values_differ(cls, values: list[Any]) -> list[Any]:
        _check_different(values)
        return values

    @field_validator("datasets")
    @classmethod
    def _validation_is_reserved(cls, entries: list[Dataset]) -> list[Dataset]:
        if any(entry.name == VALIDATION for entry in entries):
            raise ValueError(
                f"the name {VALIDATION!r}; expected another name: this one stands for the run's validation images"
            )
        return entries

    @model_validator(mode="after")
    def _references_fit(self) -> Matrix:
        _check_labels("ensembles", self.ensembles, self.single_labels)
        _check_labels("mc_dropout", self.mc_dropout, self.single_labels)
        if self.ensembles and len(self.seeds) < 2:
            raise ValueError("ensembles of one seed; expected at least two seeds")
        if self.keep == "none" and (self.ensembles or self.mc_dropout):
            raise ValueError(
                "ensembles or mc_dropout with keep: none; expected keep: last, because they load checkpoints"
            )
        return self

    @model_validator(mode="after")
    def _first_stage_fits(self) -> Matrix:
        known = [entry.name for entry in self.methods if entry.name not in self.tune]
        if self.starts_from is not None and self.starts_from not in known:
            raise ValueError(
                f"starts_from is {self.starts_from!r}; expected a method that is not tuned, one of {', '.join(known)}"
            )
        if self.starts_from is not None and self.keep == "none":
            raise ValueError("starts_from with keep: none; expected keep: last, because it loads checkpoints")
        return self

    @model_validator(mode="after")
    def _tuning_fits(self) -> Matrix:
        _check_labels("tune", list(self.tune), self.single_labels)
        if self.tune and (REFERENCE not in self.single_labels or REFERENCE in self.tune):
            raise ValueError(
                f"tune without the method {REFERENCE!r}; expected it untuned, for comparison with the tuned methods"
            )
        budgets = {label: len(tuning.values) for label, tuning in self.tune.items()}
        if len(set(budgets.values())) > 1:
            counts = ", ".join(f"{count} values for {label}" for label, count in budgets.items())
            raise ValueError(f"tune has {counts}; expected the same number of values for every method")
        return self

    @property
    def single_labels(self) -> list[str]:
        """Labels of the methods without a grid."""
        return [entry.name for entry in self.methods if not entry.grid]


def load_matrix(path: Path) -> Matrix:
    """Read and check a matrix file.

    Raises:
        InputError: A key or a value is invalid. The error names the key, its value and what was expected.
    """
    settings = read_yaml(path, "a benchmark matrix")
    if not isinstance(settings, dict):
        raise InputError(path, f"a {type(settings).__name__}", "a benchmark matrix (recipe, methods, seeds, ...)")
    try:
        return Matrix.model_validate(settings)
    except ValidationError as error:
        raise _input_error(error, path) from None


def dump_matrix(matrix: Matrix) -> str:
    """Return the matrix as YAML, with a first line by which `densecal benchmark` recognises its own file."""
    return "# densecal benchmark\n" + str(yaml.safe_dump(matrix.model_dump(mode="json"), sort_keys=False))


def _check_different(values: list[Any]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value!r} twice; expected different values")


def _check_labels(key: str, labels: list[str], known: list[str]) -> None:
    for label in labels:
        if label not in known:
            raise ValueError(f"{key} has {label!r}; expected methods without a grid, one of {', '.join(known)}")


_SECTIONS: dict[Any, type[Section]] = {
    "methods": MethodEntry,
    "datasets": Dataset,
    "scenes": SceneSet,
    "shift": Shift,
    "tune": Tuning,
}


def _input_error(error: ValidationError, path: Path) -> InputError:
    """Convert the first problem that pydantic reports into key, value and what was expected."""
    problem = error.errors()[0]
    where = f"{path}: {'.'.join(str(part) for part in problem['loc']) or 'matrix'}"
    if problem["type"] == "extra_forbidden":
        inside = [_SECTIONS[part] for part in problem["loc"][:-1] if part in _SECTIONS]
        section: type[Section] = inside[-1] if inside else Matrix
        return InputError(where, "an unknown key", f"one of {', '.join(section.model_fields)}")
    if problem["type"] == "missing":
        return InputError(where, "nothing", "this key")
    if problem["type"] == "value_error":
        actual, _, expected = problem["msg"].removeprefix("Value error, ").partition("; expected ")
        return InputError(where, actual, expected)
    expected = problem["msg"].removeprefix("Input should be ")
    return InputError(where, repr(problem["input"]), expected[:1].lower() + expected[1:])
