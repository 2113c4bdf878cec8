"""Learning rates as functions of the epoch."""

from __future__ import annotations

import math

from densecal.training.config import OptimConfig

SECOND_STAGE_FACTOR = 0.1
"""A second stage refines a trained model: schedules that do not simply go on start again from this share."""
WARMUP_START = 0.01


def learning_rate(optim: OptimConfig, epoch: float, epoch_steps: float = 1.0) -> float:
    """The learning rate at an epoch counted from 0 (fractional inside an epoch).

    ``paper``: times 0.9 for every epoch after the tenth. ``code``: after epoch e (from 1) times 0.95 ** (e // 10),
    compounding. ``late-decay``: after epoch e times 0.9 ** (e // 20), compounding. These three go on into a second
    stage. Over a stage of E epochs ``cosine`` and ``poly``, (1 - e / E) ** 0.9, fall to zero, and ``triangular``,
    1 - abs(2 (e + 1) / (E + 1) - 1), climbs and falls by the epoch.

    Args:
        optim: Settings.
        epoch: Epochs done.
        epoch_steps: Steps of the optimizer in an epoch, which ``warmup_steps`` are counted in.
    """
    rate = _scheduled(optim, epoch)
    if optim.warmup_steps:
        rate *= min(1.0, WARMUP_START + (1.0 - WARMUP_START) * epoch * epoch_steps / optim.warmup_steps)
    return rate


def _scheduled(optim: OptimConfig, epoch: float) -> float:
    whole = int(epoch)
    if optim.schedule == "paper":
        return optim.lr * 0.9 ** max(0, whole + 1 - 10)
    if optim.schedule == "code":
        return float(optim.lr * math.prod(0.95 ** (e // 10) for e in range(1, whole + 1)))
    if optim.schedule == "late-decay":
        return float(optim.lr * math.prod(0.9 ** (e // 20) for e in range(1, whole + 1)))
    second = epoch >= optim.epochs
    base = optim.lr * (SECOND_STAGE_FACTOR if second else 1.0)
    if optim.schedule == "constant":
        return base
    e, E = (epoch - optim.epochs, optim.second_epochs) if second else (epoch, optim.epochs)
    if optim.schedule == "poly":
        return float(base * (1.0 - e / E) ** 0.9)
    if optim.schedule == "triangular":
        return base * (1.0 - abs(2 * (int(e) + 1) / (E + 1) - 1.0))
    return base * 0.5 * (1.0 + math.cos(math.pi * e / E))
