"""Learning rates as functions of the epoch."""

from __future__ import annotations

import math

from densecal.training.config import OptimConfig

SECOND_STAGE_FACTOR = 0.1
"""A second stage refines a trained model: schedules that do not simply go on start again from this share."""


def learning_rate(optim: OptimConfig, epoch: float) -> float:
    """The learning rate at an epoch counted from 0 (fractional inside an epoch).

    ``paper``: times 0.9 for every epoch after the tenth. ``code``: after epoch e (from 1) times 0.95 ** (e // 10),
    compounding. ``cosine``: to zero over a stage. The paper's and the code's schedules go on into a second stage.
    """
    whole = int(epoch)
    if optim.schedule == "paper":
        return optim.lr * 0.9 ** max(0, whole + 1 - 10)
    if optim.schedule == "code":
        return float(optim.lr * math.prod(0.95 ** (e // 10) for e in range(1, whole + 1)))
    second = epoch >= optim.epochs
    base = optim.lr * (SECOND_STAGE_FACTOR if second else 1.0)
    if optim.schedule == "constant":
        return base
    done = (epoch - optim.epochs) / optim.second_epochs if second else epoch / optim.epochs
    return base * 0.5 * (1.0 + math.cos(math.pi * done))
