"""How the second stage of training begins, after a first stage in the same run or in another."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from densecal.errors import InputError
from densecal.training import checkpoint
from densecal.training.checkpoint import Checkpoint
from densecal.training.config import Config, parse_config
from densecal.training.first_stage import FIRST_STAGE, difference
from densecal.training.restoring import hash_names
from densecal.training.run import Run


def begin_second_stage(run: Run) -> None:
    """Begin a training of its own, which starts from the weights that the first stage leaves.

    The optimizers start afresh, without the moments of the first stage, as in a new run. Averaged weights become the
    weights in training, and their average starts again.
    """
    for optimizer in run.optimizers.values():
        optimizer.load_state_dict({**optimizer.state_dict(), "state": {}})
    if run.average is not None:
        run.average.restart()


@dataclass(frozen=True)
class FirstStage:
    """A finished run of plain cross entropy that a second stage starts from.

    Attributes:
        folder: The run folder, or a checkpoint folder.
        weights: Those of its last checkpoint.
        meta: What else that checkpoint says, as in ``Checkpoint``.
    """

    folder: Path
    weights: dict[str, Tensor]
    meta: dict[str, Any]

    @property
    def origin(self) -> dict[str, Any]:
        """What the checkpoints of a run say about the run that it started from."""
        hashes = self.meta["sha256"]
        return {"run": str(self.folder), "epoch": self.meta["epoch"], "weights": hashes[checkpoint.MODEL]}


def read_first_stage(config: Config, folder: Path) -> FirstStage:
    """Read the finished run of plain cross entropy that a second stage starts from.

    Args:
        config: The run with the second stage.
        folder: The other run, or a checkpoint folder.

    Raises:
        InputError: There is no second stage, or the other run does not fit.
    """
    if not config.two_stage:
        raise InputError(
            "method", f"{config.method.name} without a second stage, which would start from {folder}",
            "method.schedule=two-stage, with a method that has it",
        )  # fmt: skip
    weights, meta = checkpoint.load_model(checkpoint.find(folder))
    before = parse_config(meta.get("config"), str(folder))
    if before.method.name != FIRST_STAGE:
        raise InputError(folder, f"a run of {before.method.name}", f"a run of {FIRST_STAGE}, which is the first stage")
    if meta["epoch"] < before.total_epochs:
        raise InputError(folder, f"a run after {meta['epoch']} of {before.total_epochs} epochs", "a finished run")
    differing = difference(before, config)
    if differing is not None:
        raise InputError(folder, f"a run with {differing}", "a run with the same network, data and split")
    return FirstStage(folder, weights, meta)


def check_first_stage(out: Path, saved: Checkpoint, first_stage: FirstStage) -> None:
    """Raise an error if a run that is resumed did not start from a first stage."""
    recorded: dict[str, Any] = saved.meta.get("first_stage") or {}
    if recorded.get("weights") != first_stage.origin["weights"]:
        own = "a run with a first stage of its own"
        problem = f"a run that started from {recorded['run']}" if recorded else own
        expected = f"another folder to start from {first_stage.folder}, or --resume without it"
        raise InputError(out, problem, expected)


def load_first_stage(run: Run, first_stage: FirstStage) -> None:
    """Give a run the weights of a first stage that was trained elsewhere on the same images.

    Raises:
        InputError: The images, their split, or the weights differ.
    """
    folder = first_stage.folder
    if first_stage.meta.get("samples") != hash_names(run):
        raise InputError(folder, "a run on other images, or on another split of them", "a run with the same split")
    try:
        for network in (run.network, run.kept_network):
            network.load_state_dict(first_stage.weights)
    except RuntimeError as error:
        problem = f"weights that do not fit the network ({' '.join(str(error).split())[:200]})"
        raise InputError(folder, problem, "a run with the same network") from None
