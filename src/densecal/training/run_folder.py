"""The folder of a run: checkpoints, configuration and the table of values, and whether the folder may be used."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from densecal.errors import InputError
from densecal.io.atomic import write_text
from densecal.io.csv_rows import csv_rows
from densecal.io.documents import read_yaml
from densecal.io.run_files import run_files
from densecal.methods.adaptive import Adaptive
from densecal.training import checkpoint
from densecal.training.config import Config, dump_config, first_difference, parse_config
from densecal.training.fabric import Fabric
from densecal.training.restoring import POSITION, START, WEIGHTS, hash_names
from densecal.training.run import Run


def save_checkpoint(run: Run, out: Path, epochs: int, best_brier: float, improved: bool) -> None:
    """Save the state after so many epochs, and as the best checkpoint too if the run improved."""
    training: dict[str, Any] = {name: optimizer.state_dict() for name, optimizer in run.optimizers.items()}
    if run.average is not None:
        training[WEIGHTS] = run.network.state_dict()
        if run.config.two_stage:  # with one stage, they are those the network is built with
            training[START] = run.average.start
    if run.position is not None:
        training[POSITION] = run.position.state()
    meta = {
        "epoch": epochs,
        "best": best_brier,
        "threads": run.threads.number,
        "samples": hash_names(run),
        "config": run.config.model_dump(mode="json"),
    }
    if run.first_stage is not None:
        meta["first_stage"] = run.first_stage
    # the checkpoint comes last: after a kill before it, the epoch is repeated and the table written again
    if isinstance(run.method, Adaptive):
        _write_values(run.method, run.data.train.names, out / "alpha.csv")
    last = out / "checkpoints" / "last"
    best_folder = last.with_name("best") if improved else None
    weights = run.kept_network.state_dict()
    checkpoint.save(last, weights, run.method.state_dict(), training, meta, best_folder)


def _write_values(method: Adaptive, names: list[str], path: Path) -> None:
    """Write the value of each training image as a table."""
    values = getattr(method, method.VALUE).tolist()
    rows = [{"name": name, "value": f"{value:.9g}"} for name, value in zip(names, values, strict=True)]
    write_text(path, csv_rows(rows))


def newest_checkpoint(out: Path, resume: bool, fabric: Fabric) -> checkpoint.Checkpoint | None:
    """Complete a save that was killed, and return the newest checkpoint to resume from."""
    if fabric.global_rank == 0:
        checkpoint.recover(out / "checkpoints")
    fabric.barrier()
    saved, problems = checkpoint.load_newest(out / "checkpoints") if resume else (None, [])
    if saved is None and problems:
        raise InputError(out / "checkpoints", problems[0], "a sound checkpoint, or none to start again")
    for problem in problems:
        warnings.warn(f"{problem}; the checkpoint before it is used", stacklevel=3)
    return saved


def write_config(config: Config, path: Path) -> None:
    """Write the configuration, unless the file there says the same: it may be the recipe that was read."""
    if not path.exists() or parse_config(read_yaml(path, "the configuration of the run"), str(path)) != config:
        write_text(path, dump_config(config))


def _allow_more_epochs(before: Config, now: Config) -> Config:
    """Return the stored configuration, with more epochs if a run of one stage is resumed with more."""
    if now.optim.epochs <= before.optim.epochs or now.two_stage or before.two_stage:
        return before
    return before.model_copy(update={"optim": before.optim.model_copy(update={"epochs": now.optim.epochs})})


def check_run_folder(config: Config, out: Path, resume: bool) -> None:
    """Raise an error if the folder holds a run and it is not resumed with the settings it was started with."""
    path = out / "config.yaml"
    if not os.path.lexists(path):  # a loop of links exists too
        foreign = [file for file in run_files(out) if os.path.lexists(file)]
        if foreign:
            raise InputError(foreign[0], "exists without a config.yaml", "a new folder for the run")
        return
    if not resume:
        raise InputError(out, "already holds a run", "--resume to continue it, or another folder")
    before = parse_config(read_yaml(path, "the configuration of the run"), str(path))
    difference = first_difference(_allow_more_epochs(before, config), config)
    if difference is not None:
        key, was, now = difference
        raise InputError(out, f"a run with {key} = {was!r}, not {now!r}", "the same settings, to resume it")
