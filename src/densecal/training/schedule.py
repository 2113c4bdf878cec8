"""Learning rates as functions of the epoch."""

from __future__ import annotations

import math

from densecal.training.config import OptimConfig

SECOND_STAGE_FACTOR = 0.1
"""Schedules that restart in a second stage, which refines a trained model, do so at this share of the rate."""
WARMUP_START = 0.01
"""Share of the rate at which a warm-up begins."""


def learning_rate(optim: OptimConfig, epoch: float, epoch_steps: float = 1.0) -> float:
    """Return the learning rate at an epoch, counted from 0 and fractional inside an epoch.

    ``paper`` multiplies it by 0.9 for every epoch after the tenth. ``code`` multiplies it by 0.95 ** (e // 10) after
    each epoch e, counted from 1, and ``late-decay`` by 0.9 ** (e // 20). These three continue into a second stage.
    The others restart. Over a stage of E epochs ``cosine`` and ``poly``, (1 - e / E) ** 0.9, fall to zero.
    ``triangular``, 1 - abs(2 (e + 1) / (E + 1) - 1), rises and falls and changes once per epoch.

    Args:
        optim: Settings.
        epoch: Epochs done.
        epoch_steps: Steps of the optimizer per epoch, the unit of ``warmup_steps``.
    """
    rate = _scheduled_rate(optim, epoch)
    if optim.warmup_steps:
        rate *= min(1.0, WARMUP_START + (1.0 - WARMUP_START) * epoch * epoch_steps / optim.warmup_steps)
    return rate


def _scheduled_rate(optim: OptimConfig, epoch: float) -> float:
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
