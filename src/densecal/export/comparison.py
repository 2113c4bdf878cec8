"""The comparison of an exported file, run by onnxruntime, with the model in PyTorch."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from densecal.models.factory import SegmentationModel
from densecal.runtime.progress import Progress, silent

TOLERANCE = 1e-4
"""Largest difference of a probability between the file and PyTorch."""
BATCHES = (1, 3)

Array = NDArray[Any]


class ExportError(RuntimeError):
    """The model could not be exported, or the file disagrees with PyTorch; nothing was written."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of the file with PyTorch on one batch.

    Attributes:
        shape: Batch, height and width.
        difference: Largest difference of a probability.
        on_steps: Pixels left out of the difference: the calibrator jumps within rounding of the logit, as a step
            function does at its edges, and the file's probability lies between both sides of the jump.
        rounding: Difference between PyTorch's float32 and float64, computed only if ``difference`` is too large. A
            network with logits in the thousands rounds coarsely in any program.
    """

    shape: tuple[int, int, int]
    difference: float
    on_steps: int
    rounding: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the file is about as close to float64 as PyTorch is."""
        return self.difference <= max(TOLERANCE, 3 * self.rounding)


@torch.no_grad()
def compare(
    content: bytes,
    model: SegmentationModel,
    calibrator: nn.Module | None,
    input: str,
    sizes: tuple[tuple[int, int], ...],
    progress: Progress = silent,
) -> tuple[Comparison, ...]:
    """Run a file in onnxruntime and the model in PyTorch on the same pictures, and compare the results.

    Args:
        content: The ONNX file.
        model: The network in the file.
        calibrator: The calibrator in the file.
        input: One of ``INPUTS``.
        sizes: Heights and widths, each of which is run with all ``BATCHES``.
        progress: Called before every batch and after the last.

    Raises:
        ExportError: onnxruntime cannot run the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # do not log errors: they are raised
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    comparisons: list[Comparison] = []
    steps = len(sizes) * len(BATCHES)
    for height, width in sizes:
        for batch in BATCHES:
            progress("Comparing the file with PyTorch", len(comparisons), steps)
            images = pictures(batch, height, width)
            feed = {"images": _convert_input(images, model, input)}
            try:
                p_file = torch.from_numpy(session.run(["probabilities"], feed)[0])
            except Exception as error:  # onnxruntime's error classes are private
                problem = " ".join(str(error).split())[:300]
                raise ExportError(f"onnxruntime does not run the file at {height} x {width}: {problem}") from None
            unit = images.float() / 255
            z = model(unit).contiguous()
            comparison = compare_batch(p_file, z, unit, calibrator)
            if not comparison.agrees:
                exact = copy.deepcopy(model).double()(unit.double()).float()
                p, p_exact = (probabilities(logits, unit, None) for logits in (z, exact))
                comparison = replace(comparison, rounding=float((p - p_exact).abs().max()))
            comparisons.append(comparison)
    progress("Comparing the file with PyTorch", steps, steps)
    return tuple(comparisons)


def compare_batch(p_file: Tensor, z: Tensor, images: Tensor, calibrator: nn.Module | None) -> Comparison:
    """Compare the probabilities of a file with those of logits (B, C, H, W)."""
    p = probabilities(z, images, calibrator)
    shape = (z.shape[0], z.shape[2], z.shape[3])
    if p_file.shape != p.shape or not bool(p_file.isfinite().all()):
        return Comparison(shape, float("inf"), 0)
    difference = (p_file - p).abs()
    if calibrator is None or not difference.max() > TOLERANCE:
        return Comparison(shape, float(difference.max()), 0)
    low, high = _probability_range(z, images, calibrator)
    step = (difference > TOLERANCE) & (p_file > low - TOLERANCE) & (p_file < high + TOLERANCE)
    return Comparison(shape, float(torch.where(step, 0.0, difference).max()), int(step.sum()))


def _probability_range(z: Tensor, images: Tensor, calibrator: nn.Module) -> tuple[Tensor, Tensor]:
    """Return the lowest and the highest probability if logits change by as much as the tolerance.

    A logit that changes by 1e-4 changes its sigmoid by less than 1e-4. All are moved up, down, and each at random.
    """
    generator = torch.Generator().manual_seed(0)
    moves = [torch.ones_like(z), -torch.ones_like(z)]
    moves += [2 * torch.randint(0, 2, z.shape, generator=generator).to(z) - 1 for _ in range(8)]
    moved = torch.stack([probabilities(z + TOLERANCE * move, images, calibrator) for move in moves])
    return moved.amin(dim=0), moved.amax(dim=0)


def pictures(batch: int, height: int, width: int) -> Tensor:
    """Return varied pictures (B, 3, H, W) of bytes: a disc on a gradient, noise, squares."""
    generator = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij")
    slope = torch.stack([x + 1, y + 1, 2 - x - y]) / 4
    disc = torch.where((x - 0.2) ** 2 + y**2 < 0.3, 1 - slope, slope)
    squares = ((torch.arange(height)[:, None] // 9 + torch.arange(width) // 7) % 2).expand(3, -1, -1)
    batch_pictures = [(disc, torch.rand(3, height, width, generator=generator), squares)[i % 3] for i in range(batch)]
    return (torch.stack([picture.float() for picture in batch_pictures]) * 255).round().to(torch.uint8)


def _convert_input(images: Tensor, model: SegmentationModel, input: str) -> Array:
    """Convert bytes to the input kind."""
    if input == "uint8":
        return images.numpy()
    unit = images.float() / 255
    return np.asarray((unit if input == "unit" else (unit - model.mean) / model.std).numpy())


def probabilities(logits: Tensor, images: Tensor, calibrator: nn.Module | None) -> Tensor:
    """Return calibrated probabilities, or plain ones without a calibrator."""
    if calibrator is None:
        return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(dim=1)
    calibrated: Tensor = calibrator(logits, images if calibrator.needs_images else None)
    return calibrated
