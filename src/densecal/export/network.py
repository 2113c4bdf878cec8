"""Exporting: a trained model and its calibrator become one ONNX file, compared with PyTorch before it is written."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus
from torch.overrides import TorchFunctionMode

from densecal import __version__, posthoc
from densecal.errors import InputError
from densecal.io.atomic import write_atomically
from densecal.models.factory import MULTIPLE, SegmentationModel
from densecal.posthoc import Calibrator
from densecal.prediction.predictor import load_predictor, own_calibrator_error

INPUTS = ("unit", "uint8", "normalised")
"""Floats in [0, 1]; bytes 0 to 255; floats that are normalised already."""
OPSET = 18
"""The operator set that PyTorch's exporter writes natively; any other would be a conversion of it."""
TOLERANCE = 1e-4
"""Largest difference of a probability between the file and PyTorch."""
BATCHES = (1, 3)
TRACED = 256
"""Side of the image that is traced if sides stay free. The exporter generalises what happens to hold at this side, so
no feature map may shrink to one pixel (EDN's deepest has 1/128 of the side) or be divisible by a window of Swin."""
MAX_BYTES = (1 << 31) - (1 << 20)
"""Largest size of one ONNX file: protobuf is limited to 2 GB."""
PACKAGES = ("onnx", "onnxscript", "onnxruntime")

Array = NDArray[Any]


class ExportError(RuntimeError):
    """The model could not be exported, or the file disagrees with PyTorch; nothing was written."""


@dataclass(frozen=True)
class Comparison:
    """One batch through the file and through PyTorch.

    Attributes:
        shape: Batch, height and width.
        difference: Largest difference of a probability.
        on_steps: Pixels left out of the difference: the calibrator jumps within rounding of the logit, as a step
            function does at its edges, and the file's probability lies between both sides of the jump.
        rounding: How far PyTorch's own float32 is from float64, computed only if the difference is too large. A
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


@dataclass(frozen=True)
class Export:
    """A file that was written.

    Attributes:
        path: The file.
        bytes: Its size.
        input: Name of the input kind.
        size: Side of the images the network was trained at.
        any_size: Whether height and width are free; else both are ``size``.
        comparisons: How it compares with PyTorch.
    """

    path: Path
    bytes: int
    input: str
    size: int
    any_size: bool
    comparisons: tuple[Comparison, ...]

    @property
    def difference(self) -> float:
        """Largest difference of a probability from PyTorch."""
        return max(comparison.difference for comparison in self.comparisons)

    @property
    def on_steps(self) -> int:
        """Pixels at a jump of the calibrator."""
        return sum(comparison.on_steps for comparison in self.comparisons)


def export_run(run: Path, out: Path, calibrator: Path | None = None, input: str = "unit") -> Export:
    """Export the model of a run or checkpoint folder.

    Args:
        run: Run folder (its last checkpoint) or checkpoint folder.
        out: File to write, ``.onnx``.
        calibrator: File of a calibrator to apply after the network; the run's own unless given.
        input: One of ``INPUTS``.

    Returns:
        What was written and how far it is from PyTorch.

    Raises:
        InputError: An argument is not what it should be.
        ExportError: The model cannot be exported, or the file disagrees with PyTorch.
    """
    require_packages()
    predictor = load_predictor(run, "cpu")
    assert isinstance(predictor.model, SegmentationModel)
    if calibrator is not None and predictor.calibrator is not None:
        raise own_calibrator_error(run, predictor.calibrator)
    loaded = predictor.calibrator if calibrator is None else posthoc.load(calibrator)
    return export_model(predictor.model, out, predictor.config.data.size, loaded, input)


def export_model(
    model: SegmentationModel, out: Path, size: int, calibrator: Calibrator | None = None, input: str = "unit"
) -> Export:
    """Export a model of ``densecal.models.build``, on the CPU, in evaluation mode.

    The file maps ``images`` (B, 3, H, W) to ``probabilities`` (B, 1, H, W), or (B, K, H, W). It is run by onnxruntime
    and compared with the model before it is written.

    Args:
        model: The network with its normalisation.
        out: File to write, ``.onnx``.
        size: Side of the images it was trained at.
        calibrator: Applied after the network.
        input: One of ``INPUTS``.

    Returns:
        What was written and how far it is from PyTorch.
    """
    if input not in INPUTS:
        raise InputError("--input", input, f"one of {', '.join(INPUTS)}")
    if out.suffix.lower() != ".onnx":
        raise InputError("--out", str(out), "a name that ends in .onnx")
    module = None if calibrator is None else calibrator.as_module()
    if calibrator is not None and calibrator.num_classes != model.classes:
        actual = f"{calibrator.method} for {describe_classes(calibrator.num_classes)}"
        raise InputError("--calibrator", actual, f"one for {describe_classes(model.classes)}, which the model has")
    require_packages()
    weights = sum(tensor.nbytes for tensor in model.state_dict().values())
    if weights > MAX_BYTES:
        raise InputError(model.encoder, f"{weights / 2**30:.1f} GB of weights", "less than 2 GB, the limit of one file")
    model.eval()
    proto = _trace(Deployment(model, module, input), size)
    any_size = bool(proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param)
    sizes = ((size, size), (size + 13, max(48, size - 27))) if any_size else ((size, size),)
    comparisons = compare(proto.SerializeToString(), model, module, input, sizes)
    for comparison in comparisons:
        if not comparison.agrees:
            batch, height, width = comparison.shape
            raise ExportError(
                f"the file differs from PyTorch by {comparison.difference:.1e} in a probability, on a batch of {batch} "
                f"of {height} x {width}; expected {TOLERANCE:.0e}"
            )
    worst = max(comparison.difference for comparison in comparisons)
    _describe(proto, model, calibrator, input, size, any_size, worst)
    content = proto.SerializeToString()
    write_atomically(out, lambda stream: stream.write(content))
    return Export(out, len(content), input, size, any_size, comparisons)


def require_packages() -> None:
    """Raise an InputError that says what to install unless the extra ``export`` is there."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError("densecal export", f"no {' and no '.join(missing)}", "pip install 'densecal[export]'")


# ------------------------------------------------------------------ the graph


class Deployment(nn.Module):
    """What the file computes, from images as the user has them to probabilities.

    Args:
        model: The network with its normalisation.
        calibrator: Applied after the network.
        input: One of ``INPUTS``.
    """

    def __init__(self, model: SegmentationModel, calibrator: nn.Module | None, input: str) -> None:
        super().__init__()
        self.model, self.calibrator, self.input = model, calibrator, input

    def forward(self, images: Tensor) -> Tensor:
        """Compute foreground or class probabilities at the size of the images."""
        if self.input == "normalised":
            x, images = images, images * self.model.std + self.model.mean
        else:
            images = images.float() / 255 if self.input == "uint8" else images
            x = (images - self.model.mean) / self.model.std
        height, width = images.shape[-2:]
        # SegmentationModel.forward branches on the size, which a graph for any size cannot do
        padded = x[:, :, _padded_indices(height)][:, :, :, _padded_indices(width)]
        with PreciseTails():
            logits = self.model.network(padded)[..., :height, :width]
            return probabilities(logits, images, self.calibrator)


def _padded_indices(side: int) -> Tensor:
    """Return indices that pad a side to a multiple of 32 by repeating its last row or column."""
    return torch.arange((side + MULTIPLE - 1) // MULTIPLE * MULTIPLE).clamp(max=side - 1)


def probabilities(logits: Tensor, images: Tensor, calibrator: nn.Module | None) -> Tensor:
    """Return calibrated probabilities, or plain ones without a calibrator."""
    if calibrator is None:
        return logits.sigmoid() if logits.shape[1] == 1 else logits.softmax(dim=1)
    calibrated: Tensor = calibrator(logits, images if calibrator.needs_images else None)
    return calibrated


class PreciseTails(TorchFunctionMode):
    """Expresses sigmoid and its logarithm so that onnxruntime keeps their tails.

    The Sigmoid of onnxruntime is 0 below -18, and the exporter's LogSigmoid is the logarithm of that, minus infinity.
    Beta calibration and the mean of EBMGSOD's maps distinguish logits of -20 and -30.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replace the two functions, and call any other."""
        if function in (torch.sigmoid, Tensor.sigmoid):
            return 1 / (1 + torch.exp(-args[0]))
        if function is logsigmoid:
            return -softplus(-args[0])
        return function(*args, **(kwargs or {}))


def _trace(deployment: Deployment, size: int) -> Any:
    """Return the graph, an ``onnx.ModelProto``; for one size only if the network's code depends on the size."""
    dtype = torch.uint8 if deployment.input == "uint8" else torch.float32
    batch, height, width = (torch.export.Dim(name, min=1) for name in ("batch", "height", "width"))
    problems = []
    for free, side in (({0: batch, 2: height, 3: width}, TRACED), ({0: batch}, size)):
        example = torch.zeros((2, 3, side, side), dtype=dtype)
        try:
            with quiet_exporter(), _fixed_same_padding():
                program = torch.onnx.export(
                    deployment,
                    (example,),
                    dynamo=True,
                    opset_version=OPSET,
                    input_names=["images"],
                    output_names=["probabilities"],
                    dynamic_shapes={"images": free},
                    verbose=False,
                )
        except Exception as error:  # the exporter passes on any error of the network's code
            problems.append(" ".join(str(error).split())[:300])
            continue
        assert program is not None
        proto = program.model_proto
        dims = proto.graph.input[0].type.tensor_type.shape.dim
        # the exporter silently fixes an axis that it cannot keep free
        if all(dims[axis].dim_param for axis in free):
            return proto
        problems.append(f"the exporter fixed the input at {[dim.dim_param or dim.dim_value for dim in dims]}")
    model = deployment.model
    raise ExportError(f"{model.arch} on {model.encoder} cannot be exported: {problems[-1]}")


@contextmanager
def quiet_exporter() -> Iterator[None]:
    """Silence the exporter's remarks about its own code."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(before)


@contextmanager
def _fixed_same_padding() -> Iterator[None]:
    """Give timm a fixed "same" padding, as in TensorFlow, for strided convolutions, which it computes from the size.

    Sides are multiples of 32, so the input of a strided layer is a multiple of its stride s. Its padding is then
    max((k - 1) d + 1 - s, 0) at any size. With the size in the formula, the exporter does algebra for many minutes.
    """
    padding: Any = importlib.import_module("timm.layers.padding")
    by_size = padding.get_same_padding
    padding.get_same_padding = lambda x, k, s, d: max((k - 1) * d + 1 - s, 0)
    try:
        yield
    finally:
        padding.get_same_padding = by_size


def _describe(
    proto: Any,
    model: SegmentationModel,
    calibrator: Calibrator | None,
    input: str,
    size: int,
    any_size: bool,
    difference: float,
) -> None:
    """Write into the file what it contains and which input it expects."""
    proto.producer_name, proto.producer_version = "densecal", __version__
    metadata = {
        "densecal": __version__,
        "arch": model.arch,
        "encoder": model.encoder,
        "classes": model.classes,
        "input": input,
        "size": size,
        "any_size": any_size,
        "mean": model.mean.flatten().tolist(),
        "std": model.std.flatten().tolist(),
        "normalised_inside": input != "normalised",
        "calibrator": None if calibrator is None else calibrator.to_json(),
        "largest_difference": difference,
    }
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value if isinstance(value, str) else json.dumps(value))


def describe_classes(classes: int) -> str:
    """Return what a model or calibrator of so many classes has."""
    return "one foreground logit" if classes == 1 else f"{classes} classes"


# ------------------------------------------------------------------ the comparison


@torch.no_grad()
def compare(
    content: bytes,
    model: SegmentationModel,
    calibrator: nn.Module | None,
    input: str,
    sizes: tuple[tuple[int, int], ...],
) -> tuple[Comparison, ...]:
    """Run a file in onnxruntime and the model in PyTorch on the same pictures, and compare them.

    Args:
        content: The ONNX file.
        model: The network in the file.
        calibrator: The calibrator in the file.
        input: One of ``INPUTS``.
        sizes: Heights and widths, each of which is run with all ``BATCHES``.

    Raises:
        ExportError: onnxruntime cannot run the file.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised as well
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    comparisons = []
    for height, width in sizes:
        for batch in BATCHES:
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
    """Return the least and the largest probability if logits change by as much as the tolerance.

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
