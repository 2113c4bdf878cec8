"""The state of a sketch in a container (`.sketch` files): which arrays it has, and which counts make sense together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from densecal.io.containers import EACH, Container, pack
from densecal.metrics.exact import PIXEL_LIMIT, total_count
from densecal.metrics.fine_bins import fine_size
from densecal.metrics.levels import BOUNDARY_DISTANCES, MAX_LEVEL, ROW_SCALARS, top_ks

if TYPE_CHECKING:
    from densecal.metrics.sketch import Sketch

MAX_CLASSES = 1000
MAX_TABLE = 1 << 22
"""Bins times classes."""
MOST_NLL = 20.0
"""No entry of an image's row is larger than its pixels times this; -log(1e-7) is 16."""

Array = NDArray[Any]
_WHOLE = "_whole"
STEPS_SIGMOID, STEPS_SOFTMAX = 10, 7
"""log2 of the fine bins per octave. K classes have K tables, so theirs are coarser."""


def write_sketch(sketch: Sketch) -> bytes:
    """Return a sketch as the content of a file."""
    arrays: dict[str, Array] = {}
    return pack("sketch", {"sketch": pack_sketch(sketch, arrays)}, arrays)


def read_sketch(content: bytes, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings and the state that `write_sketch` stored; errors name ``where``."""
    with Container(content, where, "sketch") as container:
        stored = unpack_sketch(container)
        container.verify()
    return stored


def pack_sketch(sketch: Sketch, arrays: dict[str, Array]) -> dict[str, Any]:
    """Add the arrays of a sketch to those of a container, and return its entry in the header."""
    state = sketch.state_dict()
    raw_pixels = state.pop("raw_pixels")
    for name, value in state.items():
        each = name in ("rows", "raw_values", "raw_outcomes")
        arrays[f"{EACH if each else 'sketch/'}{name}"] = value
    return {
        "bins": sketch.bins,
        "num_classes": sketch.num_classes,
        "multilabel": sketch.num_classes > 1 and not sketch.softmax,
        "boundary": sketch.boundary,
        "raw_pixels": raw_pixels,
    }


def unpack_sketch(container: Container) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings and the state that `pack_sketch` stored.

    Raises:
        InputError: They are missing, damaged, or contradict one another.
    """
    settings, raw_pixels = _settings(container)
    classes, multilabel = settings["num_classes"], settings["multilabel"]
    softmax = classes > 1 and not multilabel
    tables = {}
    for name, (shape, required) in _shapes(settings["bins"], classes, softmax).items():
        if required or f"sketch/{name}" in container:
            tables[name] = container.array(f"sketch/{name}", "i8", shape)
    state: dict[str, Any] = dict(tables)
    state["rows"] = container.array(f"{EACH}rows", "f8", (-1, len(ROW_SCALARS) + settings["bins"]))
    if f"{EACH}raw_values" in container:
        state["raw_values"] = container.array(f"{EACH}raw_values", "f8", (classes, -1))
        state["raw_outcomes"] = container.array(f"{EACH}raw_outcomes", "i2", (1 if softmax else classes, -1))
    problem = _problem_of_tables(tables) or _problem_of_pixels(state, classes, softmax, raw_pixels)
    problem = problem or problem_of_rows(state["rows"])
    if problem is not None:
        raise container.error(problem, "counts that pixels can have")
    return settings, state | {"raw_pixels": raw_pixels}


def _settings(container: Container) -> tuple[dict[str, Any], int]:
    entry = container.header.get("sketch")
    given = entry if isinstance(entry, dict) else {}
    numbers = [given.get(name) for name in ("bins", "num_classes", "raw_pixels")]
    flags = [given.get(name) for name in ("multilabel", "boundary")]
    bins, classes, raw_pixels = (n if type(n) is int else -1 for n in numbers)
    if min(bins, classes) < 1 or raw_pixels < 0 or raw_pixels >= 1 << 62 or not all(type(f) is bool for f in flags):
        raise container.error("settings that are missing or wrong", "bins, num_classes, multilabel and boundary")
    if classes > MAX_CLASSES or bins * (classes + 1) > MAX_TABLE:
        raise container.error(f"{bins} bins of {classes} classes"[:60], f"{MAX_CLASSES} classes, {MAX_TABLE:,} in all")
    settings = {"bins": bins, "num_classes": classes, "multilabel": flags[0], "boundary": flags[1]}
    return settings, raw_pixels


def _shapes(bins: int, classes: int, softmax: bool) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Return the shape of every table, and whether every sketch has it."""
    bands, channels = len(BOUNDARY_DISTANCES), 2 if classes == 1 else classes
    sums: dict[str, tuple[tuple[int, ...], bool]] = {
        "top": ((bins, 4), True),
        "bands": ((bands, bins, 4), True),
        "classes": ((channels, bins, 4), True),
        "fine": ((classes, fine_size(STEPS_SOFTMAX if softmax else STEPS_SIGMOID), 4), False),
    }
    if softmax:
        sums["fine_top"] = ((fine_size(STEPS_SIGMOID), 4), False)
        if top_ks(classes):
            sums["top_k"] = ((len(top_ks(classes)), bins, 4), False)
    whole = {f"{name}{_WHOLE}": (shape[:-1], False) for name, (shape, _) in sums.items()}
    return {**sums, **whole, "levels": ((bands + 1, 2, MAX_LEVEL + 1), True), "invalid": ((), True)}


def _problem_of_tables(tables: dict[str, Array]) -> str | None:
    """Return what is wrong with the sums of single bins, if anything."""
    for name, table in tables.items():
        if (table < 0).any():
            return f"negative numbers in {name}"
        if table.ndim < 2 or table.shape[-1] != 4 or name.endswith(_WHOLE):
            continue
        pixels = table[..., :2].astype(np.float64).sum(axis=-1)
        limbs = table[..., 2:] > pixels[..., None] * (2.0**26, 2.0**27)
        whole = tables.get(f"{name}{_WHOLE}")
        if limbs.any() or (whole is not None and (whole > pixels).any()):
            return f"a mean above 1 in {name}"
    return None


def _problem_of_pixels(state: dict[str, Any], classes: int, softmax: bool, raw_pixels: int) -> str | None:
    """Return how tables of the same pixels contradict one another, if they do."""
    total = total_count(state["top"][:, :2])
    if total + total_count(state["levels"]) > PIXEL_LIMIT:
        return f"more than {PIXEL_LIMIT:,} pixels"
    shares = 1 if softmax or classes == 1 else classes  # every channel of a multi-label map has pixels of its own
    same = [state["classes"]] + [state[name] for name in ("fine",) if "fine" in state]
    if any(total_count(channel[..., :2]) * shares != total for table in same for channel in table):
        return "tables of different numbers of pixels"
    if "top_k" in state and any(total_count(table[..., :2]) > total for table in state["top_k"]):
        return "tables of different numbers of pixels"  # fewer where older files were added, which do not have it
    if softmax and ("fine" in state) != ("fine_top" in state):
        return "one of two tables of fine bins"
    if "fine_top" in state and total_count(state["fine_top"][..., :2]) != total:
        return "tables of different numbers of pixels"
    raw = state.get("raw_values")
    kept = 0 if raw is None else raw.shape[1]
    if "fine" in state:
        return "both single pixels and fine bins" if kept else None
    if kept * shares != total or raw_pixels != kept:
        return f"{kept:,} single pixels where {total:,} were counted"
    if raw is None:
        return None
    outcomes = state["raw_outcomes"]
    most = classes - 1 if softmax else 1
    if outcomes.shape[1] != kept or not ((raw >= 0) & (raw <= 1)).all() or outcomes.min(initial=0) < 0:
        return "pixels that are no probabilities"
    return "outcomes that are no class" if outcomes.max(initial=0) > most else None


def problem_of_rows(rows: Array) -> str | None:
    """Return what is wrong with the sums per image, if anything."""
    pixels = rows[:, :1]
    if not (np.isfinite(rows).all() and (rows[:, :5] >= 0).all() and (pixels == np.floor(pixels)).all()):
        return "sums per image that are no sums of probabilities"
    shares = rows[:, 1:3] > pixels * (1 + 1e-9)
    if (pixels > PIXEL_LIMIT).any() or (np.abs(rows) > MOST_NLL * pixels).any() or shares.any():
        return "sums per image that are too large"
    return None
