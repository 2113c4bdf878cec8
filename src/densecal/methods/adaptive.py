"""What the adaptive methods share: one float per training image, the accuracies, and when a value may move."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from densecal.methods.base import Method, check_choice, on_device
from densecal.methods.losses import class_gap, image_gap

# A schedule sets two options: for how many epochs no value moves, and which accuracy counts afterwards.
SCHEDULES = {"warmup": (5, "running"), "two-stage": (30, "frozen")}
# A preset sets the weight lambda of the regulariser.
PRESETS = {"paper": 2000.0, "stable": 500.0}


class Adaptive(Method, ABC):
    """A method that keeps one float per training image and moves it after every visit to the image.

    A subclass sets `b`, by which the expected confidence falls per unit of the value, and `multiplier` if its
    rule has one.

    Args:
        eta: Step size.
        lam: Weight lambda of the regulariser; by default the preset's.
        preset: `stable` (lambda 500) or `paper` (lambda 2000, with which hard inversion and smoothing oscillate); by
            default `stable`, but `paper` for `aslp-mei`, whose rule does not oscillate.
        schedule: `warmup` (the authors' code: 5 epochs of plain cross entropy, then the running accuracy) or
            `two-stage` (the paper: plain cross entropy to the end, here 30 epochs, whose accuracy is frozen).
        warmup: Epochs before values move; replaces the schedule's number.
        accuracy: `running` (that of the last validation) or `frozen` (that of the last validation before epoch
            `warmup`, or of the first one if there was none); replaces the schedule's choice.
        **common: See `Method`.
    """

    VALUE = "alpha"
    PRESET = "stable"
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
        preset: str | None = None,
        schedule: str = "warmup",
        warmup: int | None = None,
        accuracy: str | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        preset = self.PRESET if preset is None else preset
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
        # One more slot than images: padding samples read and write it, and it stays 0.
        self.register_buffer("values", torch.zeros(self.num_samples + 1))
        self.register_perturbed()
        # NaN means that the accuracy is not known yet.
        for name in ("last_accuracy", "best_accuracy", "frozen_accuracy"):
            self.register_buffer(name, torch.tensor(math.nan))
        # Visits with g < 0 in this epoch, all visits in this epoch, and the epoch.
        self.register_buffer("visits", torch.zeros(3, dtype=torch.int64))

    @abstractmethod
    def move(self, values: Tensor, gap: Tensor) -> Tensor:
        """Apply the learning rule to the values of some images, given their gaps g."""

    def values_of(self, index: Tensor) -> Tensor:
        """Return the values of the images of a batch, 0 for padding."""
        return self._values_at(self._slot(index))

    @torch.no_grad()
    def after_step(self, logits: Tensor, masks: Tensor, index: Tensor) -> None:
        """Move the values of the images of the batch, or of the batches of all processes if there are several.

        The batches of several processes must have the same size (padded with negative indices) and share no image.
        """
        slot, gap = gather_processes(self._slot(index), self.gap(logits, masks))
        old = self._values_at(slot)
        self._count(slot, gap)
        if self.epoch < self.warmup:
            return
        new = self.move(old, gap)
        may_move = (slot < self.num_samples) & gap.isfinite()
        self.values[slot] = torch.where(may_move, new, old)

    def gap(self, logits: Tensor, masks: Tensor) -> Tensor:
        """Return g = L(inverted y) - L(y) of each image (B,), for the base loss L; see `base_loss`."""
        w, regions = self.base_loss
        gap = (image_gap if self.num_classes == 1 else class_gap)(logits, masks, self.ignore_index)
        if not regions:
            return gap if w == 1 else w * gap
        with torch.autocast(logits.device.type, enabled=False):
            return w * gap + self.base_loss.region_gap(logits.float(), self.soft_labels(masks))

    def after_epoch(self, result: Any) -> None:
        """Store the validation accuracy and, in the first of two stages, freeze it."""
        accuracy = float(result.accuracy)
        _check_accuracy(accuracy)
        self.last_accuracy.fill_(accuracy)
        self.best_accuracy.copy_(torch.fmax(self.best_accuracy, self.last_accuracy))
        in_stage_one = self.epoch < self.warmup or bool(self.frozen_accuracy.isnan())
        if self.accuracy_mode == "frozen" and in_stage_one:
            self.frozen_accuracy.fill_(accuracy)
        super().after_epoch(result)

    def freeze(self, accuracy: float) -> None:
        """Set the frozen accuracy by hand, for a loop that starts from a trained model (with `warmup=0`)."""
        _check_accuracy(accuracy)
        for buffer in (self.frozen_accuracy, self.last_accuracy, self.best_accuracy):
            buffer.fill_(accuracy)

    def target_accuracy(self) -> Tensor:
        """Return A of the confidence rules: the frozen accuracy, else that of the last validation, else 1."""
        return self._frozen_or(self.last_accuracy).nan_to_num(1.0)

    def ideal_accuracy(self) -> Tensor:
        """Return A_lm of the accuracy rule: the frozen accuracy, else the best so far."""
        return self._frozen_or(self.best_accuracy)

    def statistics(self) -> dict[str, float]:
        """Summarise the values, their expected confidence, the share of g < 0 this epoch, A and mu."""
        values = self.values[: self.num_samples]
        levels = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0], device=values.device)
        mean, spread = values.mean().item(), values.quantile(levels).tolist()
        negative, visited, _ = self.visits.tolist()
        numbers = dict(zip(("mean", "min", "q25", "median", "q75", "max"), [mean, *spread], strict=True))
        statistics = {f"{self.VALUE}_{name}": number for name, number in numbers.items()}
        statistics["expected_confidence"] = 1 - self.b * mean
        statistics["negative_share"] = negative / max(visited, 1)
        statistics["accuracy"] = self.target_accuracy().item()
        if self.multiplier is not None:
            statistics["multiplier"] = self.multiplier
        statistics["perturbed"] = self.perturbed.item()
        return statistics

    def _slot(self, index: Tensor) -> Tensor:
        index = on_device(index, self.values.device)
        # An index one past the last image must raise an error, not hit the slot of padding.
        return torch.where(index < 0, self.num_samples, index + (index >= self.num_samples))

    def _values_at(self, slot: Tensor) -> Tensor:
        # Checking first would make the host wait for a device, whose own error is less clear.
        try:
            return self.values[slot]
        except IndexError:
            expected = (
                f"0 to {self.num_samples - 1} (num_samples is {self.num_samples}), or a negative number for padding"
            )
            raise IndexError(f"index: found {int(slot.max()) - 1}; expected {expected}") from None

    def _frozen_or(self, running: Tensor) -> Tensor:
        return torch.where(self.frozen_accuracy.isnan(), running, self.frozen_accuracy)

    def _count(self, slot: Tensor, gap: Tensor) -> None:
        real = slot < self.num_samples
        self.visits *= self.visits[2] == self.epoch
        self.visits += torch.stack([(real & (gap < 0)).sum(), real.sum(), torch.zeros_like(self.visits[0])])
        self.visits[2].fill_(self.epoch)  # assigning a number would make the host wait for the device


def gather_processes(slot: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """Concatenate the batches of all processes, so that each process applies every update."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return slot, gap
    # float64 holds both rows exactly, so one collective is enough.
    own = torch.stack([slot.double(), gap.double()])
    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    slots, gaps = torch.cat(parts, dim=1)
    return slots.long(), gaps.float()


def _check_accuracy(accuracy: float) -> None:
    if not 0 <= accuracy <= 1:
        raise ValueError(f"accuracy: found {accuracy}; expected a fraction in [0, 1]")
