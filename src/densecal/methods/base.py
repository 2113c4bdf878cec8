"""The protocol of a training method: the hooks that a loop calls, which by default are plain cross entropy."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from densecal import rng
from densecal.labels import perturb
from densecal.methods.base_loss import LossTerms, parse_loss
from densecal.methods.losses import SmoothedLabels, SoftTargets, bce_with_void, class_planes, cross_entropy_with_void
from densecal.methods.regions import SoftLabels, present_classes
from densecal.methods.registry import register


@register("bce")
class Method(nn.Module):
    """A way to train a calibrated model; on its own, (binary) cross entropy.

    A loop calls, in this order::

        method.start_epoch(epoch)
        images, targets = method.prepare(images, masks, index)
        loss = method.loss(model(images), targets)
        method.after_step(logits, masks, index)      # after the optimizer's step
        method.after_epoch(validation_result)

    A new method overrides the hooks it needs. State lives in buffers, so `.to` and `state_dict` carry it.

    Args:
        num_samples: Training images; `index` runs from 0 to `num_samples - 1`, negative for padding.
        num_classes: 1 for one sigmoid logit with masks (B, 1, H, W) in [0, 1]; K for K softmax logits with
            masks (B, H, W) of class indices.
        ignore_index: Value of void pixels in a mask, which count in no loss and no statistic.
        seed: Seed of every draw; a draw is a function of (seed, epoch, index).
        loss: The base loss, as weights of its terms, such as `{"bce": 1, "dice": 1}`; by default `{"bce": 1}`. Terms
            are `bce` (cross entropy, or what the method has in its place), `dice`, `iou`, `lovasz`, `tversky` and
            `focal-tversky`. The last two also take `{"weight": 1, "false_positives": 0.3, "false_negatives": 0.7}`, and
            `focal-tversky` an exponent `gamma`.
    """

    perturbed: Tensor

    def __init__(
        self,
        *,
        num_samples: int,
        num_classes: int = 1,
        ignore_index: int = 255,
        seed: int = 0,
        loss: LossTerms | None = None,
    ) -> None:
        super().__init__()
        for option, number in {"num_samples": num_samples, "num_classes": num_classes}.items():
            if number < 1:
                raise ValueError(f"{option}: found {number}; expected at least 1")
        self.num_samples = num_samples
        self.num_classes = num_classes
        self.ignore_index = ignore_index
        self.seed = seed
        self.base_loss = parse_loss(loss)
        self.epoch = 0
        self._loop_counts_epochs = False
        self._foreground_is_void: Tensor | bool | None = None

    def start_epoch(self, epoch: int) -> None:
        """Begin an epoch, counted from 0."""
        self.epoch = epoch
        self._loop_counts_epochs = True

    def prepare(self, images: Tensor, masks: Tensor, index: Tensor) -> tuple[Tensor, Any]:
        """Return the images for the model and the targets for `loss`, from images and clean masks.

        A method with its own targets calls this first. It checks the masks of the first batch, and `after_epoch`, where
        reading a tensor does not stall a device, warns if foreground seems to have the value of void pixels.
        """
        if self._foreground_is_void is None and self.num_classes == 1:
            void = masks == self.ignore_index
            self._foreground_is_void = void.any() & (void | (masks == 0)).all()
        return images, masks

    def loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the base loss of the batch, void pixels ignored, in float32.

        Args:
            logits: (B, 1, H, W) or (B, K, H, W).
            targets: What `prepare` returned.
            weight: Weight of each sample (B,), 0 for padding; or of each pixel (B, 1, H, W).
        """
        w, regions = self.base_loss
        if not regions:
            values = self.pixel_loss(logits, targets, weight)
            return values if w == 1 else w * values
        with torch.autocast(logits.device.type, enabled=False):
            value = self.base_loss.region_mean(logits.float(), self.soft_labels(targets), weight)
            return value + w * self.pixel_loss(logits, targets, weight) if w else value

    def pixel_loss(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return the term `bce` of the base loss, the mean over valid pixels, in float32; arguments as for `loss`."""
        loss = bce_with_void if self.num_classes == 1 else cross_entropy_with_void
        return loss(logits, targets, self.ignore_index, weight)

    def soft_labels(self, targets: Any) -> SoftLabels:
        """Return targets as a plane per class, for region losses."""
        if self.num_classes == 1:
            valid = targets != self.ignore_index
            planes = torch.where(valid, targets, 0).float()
            return SoftLabels(planes, valid, present_classes(planes))
        labels = targets if isinstance(targets, Tensor) else targets.labels
        valid = (labels != self.ignore_index).unsqueeze(1)
        planes = class_planes(labels, self.num_classes, self.ignore_index)
        present = present_classes(planes)
        if isinstance(targets, SmoothedLabels):
            strength = targets.strength
            strength = strength.view(-1, 1, 1, 1) if strength.ndim == 1 else strength.unsqueeze(1)
            planes = torch.where(valid, (1 - strength) * planes + strength / self.num_classes, 0)
        elif isinstance(targets, SoftTargets):
            planes = torch.where(valid, targets.planes, 0)
        return SoftLabels(planes, valid, present)

    def forward(self, logits: Tensor, targets: Any, weight: Tensor | None = None) -> Tensor:
        """Return `loss`, so that a method can replace a criterion such as `nn.BCEWithLogitsLoss`."""
        return self.loss(logits, targets, weight)

    def after_step(self, logits: Tensor, masks: Tensor, index: Tensor) -> None:
        """Learn from a batch, given the logits its loss was computed from and its clean masks."""

    def after_epoch(self, result: Any) -> None:
        """Learn from the validation after an epoch; `result.accuracy` is the pixel accuracy in [0, 1].

        A loop that never calls `start_epoch` has its epochs counted here, from 0.
        """
        if self._foreground_is_void is not None and bool(self._foreground_is_void):
            warnings.warn(
                f"masks hold only 0 and {self.ignore_index}: foreground is 1, and {self.ignore_index} marks void "
                f"pixels, which are ignored. Should the masks be divided by {self.ignore_index}?",
                stacklevel=2,
            )
            self._foreground_is_void = False
        if not self._loop_counts_epochs:
            self.epoch += 1

    def statistics(self) -> dict[str, float]:
        """Return the numbers to log once per epoch."""
        return {}

    def uniform(self, index: Tensor, stream: int, count: int = 1) -> Tensor:
        """Draw `count` uniforms per sample (B, count) for this epoch; `stream` keeps uses independent."""
        return rng.uniform(self.seed, self.epoch, index, stream, count)

    def register_perturbed(self) -> None:
        """Keep a count of the images whose labels were perturbed, over all of training."""
        self.register_buffer("perturbed", torch.zeros((), dtype=torch.int64))

    def count_perturbed(self, chosen: Tensor) -> None:
        """Count the images whose labels are perturbed, booleans (B,), in the batches of all processes."""
        count = chosen.sum()
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            dist.all_reduce(count)
        self.perturbed += count.to(self.perturbed.device)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        """Load a state, also one from before perturbed labels were counted."""
        if "perturbed" in self._buffers:
            state_dict.setdefault(f"{prefix}perturbed", torch.zeros((), dtype=torch.int64))
        super()._load_from_state_dict(state_dict, prefix, *arguments)

    def perturb_labels(self, masks: Tensor, strength: Tensor, noise: Tensor | None = None) -> Tensor | SmoothedLabels:
        """Return targets with the labels of image (or pixel) i perturbed with strength i; void pixels stay void.

        Args:
            masks: Clean masks.
            strength: One full-scale beta per image, (B,), or per pixel, of the shape of `masks`.
            noise: Added to the labels of one sigmoid logit; it has no meaning for K classes.
        """
        if self.num_classes > 1:
            return SmoothedLabels(masks, strength)
        targets = perturb(masks, strength)
        if noise is not None:
            targets = targets + noise
        return torch.where(masks == self.ignore_index, masks, targets)


def on_device(index: Tensor, device: torch.device) -> Tensor:
    """Move indices to a device; the host does not wait for a GPU."""
    return index.to(device, non_blocking=device.type == "cuda")


def check_choice(option: str, value: str, expected: Iterable[str]) -> None:
    """Raise ValueError unless an option has one of the expected values."""
    if value not in expected:
        raise ValueError(f"{option}: found {value!r}; expected one of {', '.join(expected)}")
