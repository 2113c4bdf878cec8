"""What the adaptive methods share: one float per training image, the accuracies, when a value may move."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from densecal.methods.base import Method, check_choice, on_device
from densecal.methods.losses import class_gap, image_gap

# A schedule names two options: how many epochs no value moves, and which accuracy counts afterwards.
SCHEDULES = {"warmup": (5, "running"), "two-stage": (30, "frozen")}
# A preset names the regulariser's weight lambda.
PRESETS = {"paper": 2000.0, "stable": 500.0}


class Adaptive(Method, ABC):
    """A method that keeps one float per training image and moves it after every visit of the image.

    A child sets `b`, by which the expected confidence falls per unit of the value, and `multiplier` if its
    rule has one.

    Args:
        eta: Step size.
        lam: Weight lambda of the regulariser; by default the preset's.
        preset: `paper` (lambda 2000, with which hard inversion oscillates) or `stable` (lambda 500).
        schedule: `warmup` (the authors' code: 5 epochs of plain cross entropy, then the running accuracy) or
            `two-stage` (the paper: plain cross entropy to the end, here 30 epochs, whose accuracy is frozen).
        warmup: Epochs before values move; replaces the schedule's number.
        accuracy: `running` (of the last validation) or `frozen` (of the last one before epoch `warmup`, or of
            the first one if there was none); replaces the schedule's choice.
        **common: See `Method`.
    """

    VALUE = "alpha"
    b: float
    multiplier: float | None = None
    values: Tensor
    last_accuracy: Tensor
    best_accuracy: Tensor
    frozen_accuracy: Tensor
    visits: Tensor

    def __init__(
        self,
        *,
        eta: float = 0.002,
        lam: float | None = None,
        preset: str = "paper",
        schedule: str = "warmup",
        warmup: int | None = None,
        accuracy: str | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        check_choice("preset", preset, PRESETS)
        check_choice("schedule", schedule, SCHEDULES)
        epochs, mode = SCHEDULES[schedule]
        self.eta = eta
        self.lam = PRESETS[preset] if lam is None else lam
        self.warmup = epochs if warmup is None else warmup
        self.accuracy_mode = mode if accuracy is None else accuracy
        check_choice("accuracy", self.accuracy_mode, ("running", "frozen"))
        if eta <= 0:
            raise ValueError(f"eta: found {eta}; expected a positive step size")
        for option, number in {"lam": self.lam, "warmup": self.warmup}.items():
            if number < 0:
                raise ValueError(f"{option}: found {number}; expected 0 or more")
        # One slot more than images: padding samples read and write it, and it stays 0.
        self.register_buffer("values", torch.zeros(self.num_samples + 1))
        # NaN is an accuracy not known yet.
        for name in ("last_accuracy", "best_accuracy", "frozen_accuracy"):
            self.register_buffer(name, torch.tensor(math.nan))
        # Of this epoch: visits with g < 0, all visits; and the epoch.
        self.register_buffer("visits", torch.zeros(3, dtype=torch.int64))

    @abstractmethod
    def moved(self, values: Tensor, gap: Tensor) -> Tensor:
        """Apply the learning rule to the values of some images, given their gaps g."""

    def current(self, index: Tensor) -> Tensor:
        """Return the values of a batch's images, 0 for padding."""
        return self.values[self._slot(index)]

    @torch.no_grad()
    def after_step(self, logits: Tensor, masks: Tensor, index: Tensor) -> None:
        """Move the values of the batch's images, of all processes' batches where there are several.

        Batches of several processes must have one size (padded with negative indices) and share no image.
        """
        gap = (image_gap if self.num_classes == 1 else class_gap)(logits, masks, self.ignore_index)
        slot, gap = gather_processes(self._slot(index), gap)
        self._count(slot, gap)
        if self.epoch < self.warmup:
            return
        old = self.values[slot]
        new = self.moved(old, gap)
        moves = (slot < self.num_samples) & gap.isfinite()
        self.values[slot] = torch.where(moves, new, old)

    def after_epoch(self, result: Any) -> None:
        """Take over the validation accuracy and, in stage one of two, freeze it."""
        accuracy = _checked(float(result.accuracy))
        self.last_accuracy.fill_(accuracy)
        self.best_accuracy.copy_(torch.fmax(self.best_accuracy, self.last_accuracy))
        in_stage_one = self.epoch < self.warmup or bool(self.frozen_accuracy.isnan())
        if self.accuracy_mode == "frozen" and in_stage_one:
            self.frozen_accuracy.fill_(accuracy)
        super().after_epoch(result)

    def freeze(self, accuracy: float) -> None:
        """Set the frozen accuracy by hand, for a loop that starts from a trained model (with `warmup=0`)."""
        for known in (self.frozen_accuracy, self.last_accuracy, self.best_accuracy):
            known.fill_(_checked(accuracy))

    def target_accuracy(self) -> Tensor:
        """Return A of the confidence rules: the frozen accuracy, that of the last validation, or 1 before the first."""
        return self._frozen_or(self.last_accuracy).nan_to_num(1.0)

    def ideal_accuracy(self) -> Tensor:
        """Return A_lm of the accuracy rule: the frozen accuracy, or the best so far."""
        return self._frozen_or(self.best_accuracy)

    def statistics(self) -> dict[str, float]:
        """Summarise the values, their expected confidence, the share of g < 0 this epoch, A and mu."""
        values = self.values[: self.num_samples]
        levels = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], device=values.device)
        mean, spread = values.mean().item(), values.quantile(levels).tolist()
        negative, visited, _ = self.visits.tolist()
        numbers = dict(zip(("mean", "min", "q25", "median", "q75", "max"), [mean, *spread], strict=True))
        found = {f"{self.VALUE}_{name}": number for name, number in numbers.items()}
        found["expected_confidence"] = 1 - self.b * mean
        found["negative_share"] = negative / max(visited, 1)
        found["accuracy"] = self.target_accuracy().item()
        if self.multiplier is not None:
            found["multiplier"] = self.multiplier
        return found

    def _slot(self, index: Tensor) -> Tensor:
        index = on_device(index, self.values.device)
        # one past the last image is out of bounds, not the slot of padding
        return torch.where(index < 0, self.num_samples, index + (index >= self.num_samples))

    def _frozen_or(self, running: Tensor) -> Tensor:
        return torch.where(self.frozen_accuracy.isnan(), running, self.frozen_accuracy)

    def _count(self, slot: Tensor, gap: Tensor) -> None:
        real = slot < self.num_samples
        self.visits *= self.visits[2] == self.epoch
        self.visits += torch.stack([(real & (gap < 0)).sum(), real.sum(), torch.zeros_like(self.visits[0])])
        self.visits[2].fill_(self.epoch)  # to assign a number, the host would wait for the device


def gather_processes(slot: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate the batches of all processes, so that each process applies every update."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return slot, gap
    # float64 holds both columns exactly, so one collective is enough.
    mine = torch.stack([slot.double(), gap.double()])
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    slots, gaps = torch.cat(parts, dim=1)
    return slots.long(), gaps.float()


def _checked(accuracy: float) -> float:
    if not 0 <= accuracy <= 1:
        raise ValueError(f"accuracy: found {accuracy}; expected a fraction in [0, 1]")
    return accuracy
