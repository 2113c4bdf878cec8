"""Parts of an evaluation as files: sums over some images, which merge into those over all, however divided."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.evaluation.findings import Findings
from densecal.evaluation.image_sums import name_hash, name_hashes, read_image_sums
from densecal.evaluation.record import SkippedFile
from densecal.evaluation.totals import Total
from densecal.evaluation.worker import Settings
from densecal.io.atomic import write_atomically
from densecal.io.containers import EACH, Container, pack
from densecal.io.map_options import MapOptions
from densecal.metrics.cases import AGGREGATIONS, COLUMNS
from densecal.metrics.cost import Prices
from densecal.metrics.entropy import BINS as ENTROPY_BINS
from densecal.metrics.exact import ExactSums, total_count
from densecal.metrics.levels import MAX_LEVEL, ROW_SCALARS
from densecal.metrics.regions import ZONES
from densecal.metrics.sketch_files import pack_sketch, problem_of_rows, unpack_sketch
from densecal.runtime.progress import Progress, silent, track

COMMAND = "evaluate"
"""The name by which a part identifies itself."""
_SETTINGS = ("bins", "full", "classes", "ignore_index", "entropy", "class_names", "tolerance")
"""Settings that must be the same in every part; not so the limit of pixels per image, which changes no figure."""
_EXPECTED = "a part that densecal evaluate --partial wrote"
_MOST = 1e18
"""Upper bound of numbers of pixels, distances and sizes of voxels."""
MOST_HASHES = 1 << 27
"""Most images whose names are compared when parts are merged, with 8 bytes each."""
_LIMITS = {"bins": 1000, "classes": 255, "ignore_index": 255}

Array = NDArray[Any]


@dataclass(frozen=True)
class Partial:
    """The sums of some images of an evaluation, or of all.

    Attributes:
        name: Name of the method.
        dataset: Name of the data set.
        total: The sums, with the images in the order of their names.
        skipped: Files that were left out, as `in_order` sorts them.
        unchecked: Images that were merged without a hash of their names, so that other parts may hold them too.
    """

    name: str
    dataset: str
    total: Total
    skipped: tuple[SkippedFile, ...]
    unchecked: int = 0


def in_order(skipped: Iterable[SkippedFile]) -> tuple[SkippedFile, ...]:
    """Sort skipped files by name, so that their order does not depend on how the images were divided into parts."""
    return tuple(sorted(skipped, key=lambda entry: (Path(entry.file).stem, entry.file, entry.reason)))


# ------------------------------------------------------------------ writing


def write_partial(path: Path, part: Partial) -> None:
    """Write a part to a file."""
    content = pack_partial(part)
    write_atomically(path, lambda stream: stream.write(content))


def pack_partial(part: Partial) -> bytes:
    """Return a part as the content of a file."""
    total, arrays = part.total, dict[str, Array]()
    sketch = pack_sketch(total.meter.sketch, arrays)
    sums = total.segmentation_meter().exact_sums()
    sums.merge(total.segmentation)
    arrays |= {f"segmentation/{name}": value for name, value in sums.integers().items()}
    for name, column in _columns(total.settings).items():
        arrays[f"{EACH}{name}"] = np.array(total.per_image.entries(name), np.float64).reshape(-1, *column.shape)
    arrays[f"{EACH}names"] = _to_bytes(total.stems)
    if total.groups is not None:
        arrays[f"{EACH}groups"] = _to_bytes(total.groups)
    if total.sums is not None:
        arrays |= total.sums.arrays()
    arrays |= {"folds/counts": total.folds.table(), "folds/images": total.folds.images}
    if total.settings.entropy:
        arrays["entropy/histogram"] = total.entropy.histogram
        arrays[f"{EACH}entropy"] = np.array(total.entropy.images, np.float64)
    prices = total.settings.prices
    header = {
        "prices": None if prices is None else [prices.miss, prices.false_alarm],
        "name": part.name,
        "dataset": part.dataset,
        "settings": {name: getattr(total.settings, name) for name in _SETTINGS}
        | {"logits": total.settings.maps.logits},
        "findings": vars(total.findings),
        "skipped": [[entry.file, entry.reason] for entry in part.skipped],
    }
    return pack(COMMAND, {"sketch": sketch, "evaluation": header}, arrays)


def _to_bytes(names: Sequence[str]) -> Array:
    """Return names with a zero byte after each. Bytes that are not UTF-8 are kept."""
    text = "".join(name.replace("\0", " ") + "\0" for name in names)
    return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8)


# ------------------------------------------------------------------ reading


def read_partial(path: Path) -> Partial:
    """Read a part.

    Raises:
        InputError: It cannot be read, is damaged, or is inconsistent.
    """
    with Container(path, str(path), COMMAND) as container:
        header = _Header(container)
        total = Total(header.settings)
        total.sums = read_image_sums(container, header.settings.bins)
        state = _read_sketch(container, total)
        images = len(state["rows"])
        total.meter.load_state_dict(state)
        total.findings = header.findings
        total.segmentation = _read_sums(container, total, state)
        for name, column in _columns(header.settings).items():
            if name == "zones":
                total.per_image[name] = _read_zones(container, state["rows"])
            else:
                total.per_image[name] = _each(container, name, images, (-1, *column.shape), column.most)
        total.stems = _names(container, "names", images)
        total.groups = _names(container, "groups", images) if f"{EACH}groups" in container else None
        if "folds/counts" in container:
            _read_folds(container, total, images)
        if header.settings.entropy:
            total.entropy.histogram = container.array("entropy/histogram", "i8", (ENTROPY_BINS,))
            total.entropy.images = _each(container, "entropy", total.images, (-1,), 1.0).tolist()
        container.verify()
    return Partial(header.name, header.dataset, total, header.skipped)


class _Header:
    """The checked header of a part."""

    def __init__(self, container: Container) -> None:
        entry = container.header.get("evaluation")
        values = entry if isinstance(entry, dict) else {}
        try:
            self.name, self.dataset = (_text(values[key]) for key in ("name", "dataset"))
            self.settings = replace(_settings(values["settings"]), prices=_prices(values.get("prices")))
            counts = values["findings"]
            findings = {field.name: _count(counts.get(field.name, 0)) for field in dataclasses.fields(Findings)}
            self.skipped = in_order(SkippedFile(_text(file), _text(reason)) for file, reason in values["skipped"])
        except (KeyError, TypeError, ValueError) as error:
            raise container.error(f"an invalid header ({error!r})", _EXPECTED) from None
        self.findings = Findings(**findings)


@dataclass(frozen=True)
class _Column:
    """A column of `PerImage`: the shape of an entry, and the largest allowed value."""

    shape: tuple[int, ...]
    most: float


def _columns(settings: Settings) -> dict[str, _Column]:
    """Return the columns of an evaluation with some settings."""
    classes = 1 if settings.binary else settings.classes or 1
    columns = {
        "overlaps": _Column((2,), 1.0),
        "cases": _Column((classes, len(COLUMNS)), _MOST),
        "confidences": _Column((1 + len(AGGREGATIONS),), _MOST),
    }
    if settings.prices is not None:
        columns["errors"] = _Column((classes, 2), _MOST)
    if settings.full:
        columns["sizes"] = _Column((), np.inf)
        columns["zones"] = _Column((len(ZONES), len(ROW_SCALARS) + settings.bins), np.inf)
    return columns


def _prices(values: Any) -> Prices | None:
    if values is None:
        return None
    miss, false_alarm = values
    return Prices(float(miss), float(false_alarm))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("expected text")
    return value


def _count(value: Any, most: int = 1 << 53) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("expected a number in range")
    return value


def _settings(values: Any) -> Settings:
    numbers = {
        name: None if values[name] is None and name != "bins" else _count(values[name], most)
        for name, most in _LIMITS.items()
    }
    flags = {name: values[name] for name in ("full", "entropy", "logits")}
    names = values["class_names"]
    if not all(type(flag) is bool for flag in flags.values()) or not isinstance(names, list):
        raise TypeError("expected settings")
    if numbers["bins"] == 0 or numbers["classes"] == 0 or (names and len(names) != numbers["classes"]):
        raise ValueError("expected bins, classes and their names")
    tolerance = values["tolerance"]
    if type(tolerance) is not float or not 0 < tolerance < math.inf:
        raise ValueError("expected a tolerance above 0")
    maps = MapOptions(logits=flags.pop("logits"))
    names = tuple(_text(name) for name in names)
    return Settings(**numbers, **flags, class_names=names, maps=maps, tolerance=tolerance)  # type: ignore[arg-type]


def _read_sketch(container: Container, total: Total) -> dict[str, Any]:
    """Read the state of the sketch, whose settings must be those of the evaluation."""
    settings, state = unpack_sketch(container)
    sketch = total.meter.sketch
    expected = {
        "bins": sketch.bins, "num_classes": sketch.num_classes, "multilabel": False, "boundary": sketch.boundary,
    }  # fmt: skip
    if settings != expected:
        raise container.error("a sketch of other settings than its evaluation", _EXPECTED)
    pixels = total_count(state["top"][:, :2]) + total_count(state["levels"])
    counted = total_count(state["rows"][:, 0].astype(np.int64)) + (total.sums.pixels if total.sums else 0)
    if counted != pixels or (total.sums and len(state["rows"])) or int(state["invalid"]):
        raise container.error("images and pixels that do not belong together", _EXPECTED)
    return state


def _read_sums(container: Container, total: Total, state: dict[str, Any]) -> ExactSums:
    """Read the segmentation sums, which must cover as many images or pixels as the sketch."""
    meter = total.segmentation_meter()
    shapes = {name: value.shape for name, value in meter.exact_sums().integers().items()}
    floats = {name for name, value in meter.state_dict().items() if np.issubdtype(value.dtype, np.floating)}
    integers = {name: container.array(f"segmentation/{name}", "i8", shape) for name, shape in shapes.items()}
    scored = int((state["rows"][:, 0] > 0).sum()) + (total.sums.table.images if total.sums else 0)
    voided = total.findings.voided
    if "matrix" in integers:
        fits = total_count(integers["matrix"]) == total_count(state["top"][:, :2])
    else:
        images, whole = integers["images"].tolist()
        fewest, most = (scored if total.has_structure else 0), (scored if total.has_structure or voided else 0)
        fits = images == scored and fewest <= whole <= most
    if not fits or any((value < 0).any() for value in integers.values()):
        raise container.error("segmentation scores of other images", _EXPECTED)
    return ExactSums.from_integers(integers, floats)


def _read_folds(container: Container, total: Total, images: int) -> None:
    """Read the pixels by fold and logit, which older parts do not have."""
    folds = total.folds
    counts = container.array("folds/counts", "i8", folds.table().shape)
    numbers = container.array("folds/images", "i8", folds.images.shape)
    if f"{EACH}shares" in container:  # the share of foreground, which parts of this version lack
        _each(container, "shares", images, (-1,), 1.0)
    pixels = int(total.meter.sketch.image_rows()[:, 0].sum()) + (total.sums.pixels if total.sums else 0)
    counted = {total_count(counts[:, view, :2]) for view in range(counts.shape[1])}
    means = counts[:, :, 2] <= counts[:, :, :2].astype(np.float64).sum(axis=2) * MAX_LEVEL
    if (counts < 0).any() or (numbers < 0).any() or counted != {pixels} or not means.all():
        raise container.error("pixels by logit that do not belong to its images", _EXPECTED)
    folds.load(counts, numbers)


def _each(container: Container, name: str, images: int, shape: tuple[int, ...], most: float) -> Array:
    """Read an array with numbers from 0 to ``most``, or NaN, for every image."""
    array = container.array(f"{EACH}{name}", "f8", shape)
    if len(array) != images or not (np.isnan(array) | ((array >= 0) & (array <= most + 1e-9))).all():
        raise container.error(f"{name} that do not belong to {images:,} images", _EXPECTED)
    return array


def _read_zones(container: Container, rows: Array) -> Array:
    """Read the rows of the boundary zones, which must count no more than the images hold."""
    zones = container.array(f"{EACH}zones", "f8", (-1, len(ZONES), rows.shape[1]))
    fits = len(zones) == len(rows) and np.array_equal(zones[:, :, 0].sum(axis=1), rows[:, 0])
    problem = problem_of_rows(zones.reshape(-1, rows.shape[1])) if fits else "boundary zones of other images"
    if problem is not None:
        raise container.error(problem, _EXPECTED)
    return zones


def _names(container: Container, name: str, images: int) -> list[str]:
    content = container.array(f"{EACH}{name}", "u1", (-1,)).tobytes()
    if content.count(b"\0") != images or (images and content[-1:] != b"\0") or (content and not images):
        raise container.error(f"{name} that do not belong to {images:,} images", _EXPECTED)
    return content.decode("utf-8", "surrogateescape").split("\0")[:-1]


# ------------------------------------------------------------------ merging


def merge_partials(
    paths: Sequence[Path], name: str | None = None, dataset: str | None = None, progress: Progress = silent
) -> Partial:
    """Add up the parts of an evaluation. The result is that of one call over all images, in any order of parts.

    Args:
        paths: Files of parts.
        name: Name of the method; that of the parts unless given.
        dataset: Name of the data; that of the parts unless given.
        progress: Called with the number of parts added.

    Raises:
        InputError: A part cannot be read, has other settings than the first, or holds an image that another one holds.
    """
    first: Partial | None = None
    names: dict[str, set[str]] = {"name": set(), "dataset": set()}
    skipped: list[SkippedFile] = []
    hashes: list[Array] = []
    for path in track(paths, "Adding parts", progress):
        part = read_partial(path)
        if first is None:
            first, total = part, Total(part.total.settings, part.total.groups is not None)
        _check_settings(path, part, paths[0], first)
        try:
            total.merge(part.total)
        except ValueError as error:  # too many pixels
            raise InputError(path, str(error), "fewer parts") from None
        skipped += part.skipped
        own = name_hashes(part.total.stems) if part.total.sums is None else part.total.sums.hashes
        hashes.append(own if sum(map(len, hashes)) + len(own) <= MOST_HASHES else own[:0])
        names["name"].add(part.name)
        names["dataset"].add(part.dataset)
    if first is None:
        raise InputError("PART", "no part", "at least one")
    _refuse_overlap(paths, hashes)
    total.sort()
    return Partial(
        name or _only(names["name"], "--name"),
        dataset or _only(names["dataset"], "--dataset"),
        total,
        in_order(skipped),
        total.images - sum(map(len, hashes)),
    )


def _check_settings(path: Path, part: Partial, first_path: Path, first: Partial) -> None:
    """Refuse a part whose sums cannot be added to those of the first."""
    for key in (*_SETTINGS, "prices"):
        actual, expected = getattr(part.total.settings, key), getattr(first.total.settings, key)
        if actual != expected:
            raise InputError(path, f"{key} {actual}", f"{key} {expected}, as in {first_path}")
    groups = [other.total.groups for other in (part, first)]
    if (groups[0] is None) != (groups[1] is None):
        states = ["with groups" if listed is not None else "without groups" for listed in groups]
        raise InputError(path, states[0], f"a part {states[1]}, as {first_path}")


def _refuse_overlap(paths: Sequence[Path], hashes: Sequence[Array]) -> None:
    """Refuse images that occur in two parts, given the hashes of the names in each."""
    everything = np.sort(np.concatenate(hashes))
    twice = everything[1:][everything[1:] == everything[:-1]]
    if not len(twice):
        return
    known = set(twice.tolist())
    holders = [path for path, own in zip(paths, hashes, strict=True) if np.isin(own, twice).any()]
    name = next((stem for path in holders for stem in read_partial(path).total.stems if name_hash(stem) in known), None)
    same = twice[0] if name is None else name_hash(name)
    owners = [path for path, own in zip(paths, hashes, strict=True) for _ in range(int((own == same).sum()))]
    image = "an image without its name" if name is None else f"the image {name!r}"
    more = f" ({len(twice)} images occur twice)" if len(twice) > 1 else ""
    raise InputError(owners[1], f"{image}{more}", f"it in {owners[0]} alone: parts must not overlap")


def _only(names: set[str], option: str) -> str:
    if len(names) > 1:
        shown = ", ".join(repr(name) for name in sorted(names)[:3])
        raise InputError(option, f"parts called {shown}", f"{option}, because the parts do not agree")
    return next(iter(names))
