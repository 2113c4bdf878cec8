"""Gradient-based fitting of calibrators that are small networks, on a copy: a failed fit changes nothing."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from densecal.errors import InputError
from densecal.posthoc.base import Batch, Batches
from densecal.posthoc.networks.base import NetworkCalibrator, to_tensor

C = TypeVar("C", bound=NetworkCalibrator)
Loss = Callable[[C, Batch], Tensor]


def train_copy(
    network: C,
    batches: Batches,
    loss: Loss[C],
    optimizer: Callable[..., torch.optim.Optimizer],
    epochs: int,
    **settings: float,
) -> C:
    """Return a trained copy of a network; the network itself stays as it is.

    Args:
        network: Where to start.
        batches: Starts a pass over the data; called once per epoch.
        loss: Mean loss of a batch.
        optimizer: Its class. Its learning rate falls along a half cosine, epoch by epoch.
        epochs: Passes over the data.
        **settings: Options of the optimizer, including ``lr``.
    """
    student = copy.deepcopy(network).requires_grad_(True).train()
    device = next(student.parameters()).device
    stepper = optimizer(student.parameters(), **settings)
    steps = 0
    for epoch in range(epochs):
        for group in stepper.param_groups:
            group["lr"] = settings["lr"] * (1.0 + math.cos(math.pi * epoch / epochs)) / 2.0
        for batch in batches():
            value = loss(student, _to_device(Batch(*batch), device, network))
            if not bool(value.isfinite()):
                raise InputError(network.method, f"a loss of {value.item()}", "finite logits and a smaller lr")
            stepper.zero_grad(set_to_none=True)
            value.backward()  # type: ignore[no-untyped-call]
            stepper.step()
            steps += 1
    if not steps:
        raise InputError(network.method, "no batches", "pixels to fit on")
    return student.requires_grad_(False).eval()


def pixel_nll(z: Tensor, masks: Tensor, ignore_index: int | None) -> Tensor:
    """Return the mean NLL over the valid pixels of a batch, or 0 if there are none."""
    valid = torch.ones_like(masks, dtype=torch.bool) if ignore_index is None else masks != ignore_index
    labels = torch.where(valid, masks, 0)
    if z.shape[1] == 1:
        values = binary_cross_entropy_with_logits(z, (labels > 0.5).to(z.dtype), reduction="none")
    else:
        values = cross_entropy(z, labels.long(), reduction="none")
    return (values * valid).sum() / valid.sum().clamp(min=1)


def _to_device(batch: Batch, device: torch.device, network: NetworkCalibrator) -> Batch:
    if batch.images is None:
        raise InputError(network.method, "batches without images", "logits, masks and images")
    logits, masks, images = (to_tensor(array).to(device) for array in batch)
    return Batch(logits.float(), masks, images.float())
