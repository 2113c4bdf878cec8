"""Exporting: a trained model and its calibrator become one ONNX file, compared with PyTorch before it is written."""

from __future__ import annotations

import importlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus
from torch.overrides import TorchFunctionMode

from densecal import __version__, posthoc
from densecal.errors import InputError
from densecal.export.comparison import TOLERANCE, Comparison, ExportError, compare, probabilities
from densecal.export.steps import report_steps
from densecal.io.atomic import write_atomically
from densecal.models.factory import MULTIPLE, SegmentationModel
from densecal.posthoc import Calibrator
from densecal.prediction.predictor import load_predictor, own_calibrator_error
from densecal.runtime.progress import Progress, silent

INPUTS = ("unit", "uint8", "normalised")
"""Floats in [0, 1]; bytes 0 to 255; floats that are normalised already."""
OPSET = 18
"""The operator set that PyTorch's exporter writes natively; any other would need a conversion."""
TRACED = 256
"""Side of the image that is traced if sides stay free. The exporter generalises whatever holds at this side, so no
feature map may shrink to one pixel (EDN's deepest has 1/128 of the side) or be divisible by a window of Swin."""
MAX_BYTES = (1 << 31) - (1 << 20)
"""Largest size of one ONNX file: protobuf is limited to 2 GB."""
PACKAGES = ("onnx", "onnxscript", "onnxruntime")


@dataclass(frozen=True)
class Export:
    """A file that was written.

    Attributes:
        path: The file.
        bytes: Its size.
        input: Name of the input kind.
        size: Side of the images the network was trained at.
        any_size: Whether height and width are free; else both are ``size``.
        comparisons: Its comparisons with PyTorch.
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


def export_run(
    run: Path, out: Path, calibrator: Path | None = None, input: str = "unit", progress: Progress = silent
) -> Export:
    """Export the model of a run or checkpoint folder.

    Args:
        run: Run folder (its last checkpoint) or checkpoint folder.
        out: File to write, ``.onnx``.
        calibrator: File of a calibrator to apply after the network; the run's own unless given.
        input: One of ``INPUTS``.
        progress: Called after every step.

    Returns:
        What was written and how far it is from PyTorch.

    Raises:
        InputError: An argument is invalid.
        ExportError: The model cannot be exported, or the file disagrees with PyTorch.
    """
    require_packages()
    predictor = load_predictor(run, "cpu")
    assert isinstance(predictor.model, SegmentationModel)
    if calibrator is not None and predictor.calibrator is not None:
        raise own_calibrator_error(run, predictor.calibrator)
    loaded = predictor.calibrator if calibrator is None else posthoc.load(calibrator)
    return export_model(predictor.model, out, predictor.config.data.size, loaded, input, progress)


def export_model(
    model: SegmentationModel,
    out: Path,
    size: int,
    calibrator: Calibrator | None = None,
    input: str = "unit",
    progress: Progress = silent,
) -> Export:
    """Export a model of ``densecal.models.build``, on the CPU, in evaluation mode.

    The file maps ``images`` (B, 3, H, W) to ``probabilities`` (B, 1, H, W), or (B, K, H, W). It is run by onnxruntime
    and compared with the model before it is written.

    Args:
        model: The network with its normalisation.
        out: File to write, ``.onnx``.
        size: Side of the images it was trained at.
        calibrator: Calibrator to apply after the network.
        input: One of ``INPUTS``.
        progress: Called after every step.

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
    proto = _trace(Deployment(model, module, input), size, progress)
    any_size = bool(proto.graph.input[0].type.tensor_type.shape.dim[2].dim_param)
    sizes = ((size, size), (size + 13, max(48, size - 27))) if any_size else ((size, size),)
    comparisons = compare(proto.SerializeToString(), model, module, input, sizes, progress)
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
    """Raise an InputError that says what to install, unless the extra ``export`` is installed."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError("densecal export", f"no {' and no '.join(missing)}", "pip install 'densecal[export]'")


# ------------------------------------------------------------------ the graph


class Deployment(nn.Module):
    """The computation of the file, from images in the kind of its input to probabilities.

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


def _trace(deployment: Deployment, size: int, progress: Progress) -> Any:
    """Return the graph, an ``onnx.ModelProto``; for one size only if the network's code depends on the size."""
    dtype = torch.uint8 if deployment.input == "uint8" else torch.float32
    batch, height, width = (torch.export.Dim(name, min=1) for name in ("batch", "height", "width"))
    problems: list[str] = []
    for free, side in (({0: batch, 2: height, 3: width}, TRACED), ({0: batch}, size)):
        example = torch.zeros((2, 3, side, side), dtype=dtype)
        title = "Tracing the network again, for one image size" if problems else "Tracing the network"
        try:
            with quiet_exporter(), _fixed_same_padding(), report_steps(deployment, example, title, progress):
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
    """Silence the exporter's warnings about its own code."""
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
    """Describe the outputs of a model or calibrator by their number."""
    return "one foreground logit" if classes == 1 else f"{classes} classes"
