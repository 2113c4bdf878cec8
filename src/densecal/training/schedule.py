"""Learning rates as functions of the epoch."""

from __future__ import annotations

import math

from densecal.training.sections import OptimConfig

WARMUP_START = 0.01
"""Share of the rate at which a warm-up begins."""


def stage_position(optim: OptimConfig, epoch: float) -> tuple[float, int]:
    """Return how many epochs of its stage are done at an epoch, and how many the stage has."""
    if epoch < optim.epochs:
        return epoch, optim.epochs
    return epoch - optim.epochs, optim.second_length


def learning_rate(optim: OptimConfig, epoch: float, epoch_steps: float = 1.0) -> float:
    """Return the learning rate at an epoch, counted from 0 and fractional inside an epoch.

    A second stage, from epoch ``optim.epochs`` on, is a training of its own: schedule and warm-up start again at the
    base rate. At epoch e of a stage of E epochs, ``paper`` has multiplied the rate by 0.9 for every epoch after the
    tenth. ``code`` multiplies it by 0.95 ** (e // 10) after each epoch e, counted from 1, and ``late-decay`` by
    0.9 ** (e // 20). ``cosine`` and ``poly``, (1 - e / E) ** 0.9, fall to zero. ``triangular``,
    1 - abs(2 (e + 1) / (E + 1) - 1), rises and falls and changes once per epoch.

    Args:
        optim: Settings.
        epoch: Epochs done, over both stages.
        epoch_steps: Steps of the optimizer per epoch, the unit of ``warmup_steps``.
    """
    e, E = stage_position(optim, epoch)
    rate = optim.lr * _share(optim.schedule, e, E)
    if optim.warmup_steps:
        rate *= min(1.0, WARMUP_START + (1.0 - WARMUP_START) * e * epoch_steps / optim.warmup_steps)
    return rate


def _share(schedule: str, e: float, E: int) -> float:
    """Return the share of the base rate after e of the E epochs of a stage."""
    if schedule == "paper":
        return float(0.9 ** max(0, int(e) + 1 - 10))
    if schedule == "code":
        return float(math.prod(0.95 ** (done // 10) for done in range(1, int(e) + 1)))
    if schedule == "late-decay":
        return float(math.prod(0.9 ** (done // 20) for done in range(1, int(e) + 1)))
    if schedule == "poly":
        return float((1.0 - e / E) ** 0.9)
    if schedule == "triangular":
        return 1.0 - abs(2 * (int(e) + 1) / (E + 1) - 1.0)
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * e / E))
    return 1.0
