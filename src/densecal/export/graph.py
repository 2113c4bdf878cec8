"""A calibrator inside an ONNX file of another origin: the output keeps its name and becomes calibrated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from densecal import __version__, posthoc
from densecal.errors import InputError
from densecal.export.comparison import TOLERANCE, ExportError, compare_batch, pictures
from densecal.export.network import MAX_BYTES, OPSET, PreciseTails, describe_classes, quiet_exporter, require_packages
from densecal.io.atomic import write_atomically
from densecal.posthoc import Calibrator
from densecal.posthoc.logit_histogram import P_CLIP
from densecal.prediction.onnx_model import OnnxModel, load_onnx
from densecal.runtime.progress import Progress, silent

PREFIX = "densecal_"
"""Prefix of the names of all added nodes and tensors."""
_EXAMPLE = (2, 24, 40)
"""Batch, height and width with which the calibrator is traced."""


@dataclass(frozen=True)
class CalibratedFile:
    """An ONNX file that was written with a calibrator inside.

    Attributes:
        path: The file.
        bytes: Its size.
        output: Name of the output that is now calibrated.
        difference: Largest difference of a probability from the calibrator applied in Python to the original output.
        on_steps: Pixels left out of the difference, because the calibrator jumps there within rounding.
    """

    path: Path
    bytes: int
    output: str
    difference: float
    on_steps: int


def fold_calibrator(
    path: Path, out: Path, calibrator: Path, preprocess: str | None = None, progress: Progress = silent
) -> CalibratedFile:
    """Write an ONNX file whose output is calibrated. All names, inputs and other outputs stay as they are.

    Args:
        path: The ONNX file.
        out: File to write, ``.onnx``.
        calibrator: File of a calibrator for maps of this network.
        preprocess: Name of a preset, or a YAML file, which also says which output is calibrated and what it holds.
        progress: Called before every step and after the last.

    Raises:
        InputError: An argument is invalid.
        ExportError: The calibrator cannot be put into this graph, or the new file disagrees with the original.
    """
    require_packages()
    if out.suffix.lower() != ".onnx":
        raise InputError("--out", str(out), "a name that ends in .onnx")
    model = load_onnx(path, preprocess, "cpu")
    loaded = posthoc.load(calibrator)
    if loaded.num_classes != model.classes:
        actual = f"{loaded.method} for {describe_classes(loaded.num_classes)}"
        raise InputError("--calibrator", actual, f"one for {describe_classes(model.classes)}, which the model has")
    if loaded.needs_images:
        raise InputError("--calibrator", f"{loaded.method}, which needs images", "a calibrator that needs only maps")
    if model.session.get_modelmeta().custom_metadata_map.get("calibrator", "null") != "null":
        raise InputError(path, "a file with a calibrator inside", "the file without it")
    samples = [sample.permute(1, 2, 0).numpy() for sample in pictures(3, 96, 128)]
    steps = 2 * len(samples) + 1
    outputs = []
    for done, sample in enumerate(samples):
        progress("Running the network", done, steps)
        outputs.append(model.outputs([sample]))
        model.probabilities(outputs[-1][model.output])  # refuses values that are no probabilities
    progress("Tracing the calibrator", len(samples), steps)
    head = _Head(loaded, model.preprocess.activation, outputs[0][model.output].ndim == 4)
    proto = _merge(_read(path), _trace(head, model), model.output)
    _describe(proto, model, loaded)
    content: bytes = proto.SerializeToString()
    difference, on_steps = _compare(content, model, head, samples, outputs, progress)
    write_atomically(out, lambda stream: stream.write(content))
    return CalibratedFile(out, len(content), model.output, difference, on_steps)


class _Head(nn.Module):
    """Turns the output of a network into calibrated probabilities of the same type.

    Args:
        calibrator: The calibrator.
        activation: What turns the output into probabilities: none, sigmoid or softmax.
        has_channels: Whether the output is (B, C, H, W) and not (B, H, W).
    """

    def __init__(self, calibrator: Calibrator, activation: str, has_channels: bool) -> None:
        super().__init__()
        self.calibrator, self.classes = calibrator.as_module(), calibrator.num_classes
        self.activation, self.has_channels = activation, has_channels

    def logits(self, values: Tensor) -> Tensor:
        """Return the logits (B, C, H, W) of an output."""
        v = (values if self.has_channels else values[:, None]).float()
        if self.activation != "none":
            return v
        if self.classes > 1:
            return v.clamp(min=P_CLIP).log()
        v = v.clamp(P_CLIP, 1 - P_CLIP)
        return v.log() - (1 - v).log()

    def forward(self, values: Tensor) -> Tensor:
        """Compute calibrated probabilities of the shape and type of an output."""
        with PreciseTails():
            p: Tensor = self.calibrator(self.logits(values))
        return (p if self.has_channels else p[:, 0]).to(values.dtype)


def _trace(head: _Head, model: OnnxModel) -> Any:
    """Return the graph of the head, an ``onnx.ModelProto`` from ``values`` to ``calibrated``."""
    batch, height, width = _EXAMPLE
    channels = (model.classes,) if head.has_channels else ()
    kind = torch.float16 if model.output_type == "tensor(float16)" else torch.float32
    example = torch.full((batch, *channels, height, width), 0.5, dtype=kind)
    axes = (0, 2, 3) if head.has_channels else (0, 1, 2)
    sides = (torch.export.Dim(name, min=1) for name in ("batch", "height", "width"))
    try:
        with quiet_exporter():
            program = torch.onnx.export(
                head,
                (example,),
                dynamo=True,
                opset_version=OPSET,
                input_names=["values"],
                output_names=["calibrated"],
                dynamic_shapes={"values": dict(zip(axes, sides, strict=True))},
                verbose=False,
            )
    except Exception as error:  # the exporter passes on any error of the calibrator's code
        problem = " ".join(str(error).split())[:300]
        raise ExportError(f"{head.calibrator.method} cannot be exported: {problem}") from None
    assert program is not None
    return program.model_proto


def _read(path: Path) -> Any:
    import onnx

    proto = onnx.load(str(path))
    if proto.ByteSize() > MAX_BYTES:
        raise InputError(path, f"{proto.ByteSize() / 2**30:.1f} GB", "less than 2 GB, the limit of one file")
    return proto


def _merge(host: Any, head: Any, output: str) -> Any:
    """Return the host with the head behind one of its outputs. The head's output takes over the name."""
    import onnx

    versions = {opset.domain: opset.version for opset in host.opset_import}
    try:  # the comparison that follows detects a conversion that changes what is computed
        if versions.get("", 0) < OPSET:
            host = onnx.version_converter.convert_version(host, OPSET)
        elif versions[""] > OPSET:
            head = onnx.version_converter.convert_version(head, versions[""])
    except Exception as error:  # the converter raises errors of many kinds
        problem = " ".join(str(error).split())[:300]
        raise ExportError(f"the graph of operator set {versions.get('')} cannot be joined: {problem}") from None
    for domain, version in versions.items():  # the converter drops other domains
        if domain not in {opset.domain for opset in host.opset_import}:
            host.opset_import.append(onnx.helper.make_opsetid(domain, version))
    raw = f"{PREFIX}raw_{output}"
    _rename(host.graph, {output: raw})
    head = onnx.compose.add_prefix(head, PREFIX)
    ends = {head.graph.input[0].name: raw, head.graph.output[0].name: output}
    _rename(head.graph, ends)
    host.graph.node.extend(head.graph.node)
    host.graph.initializer.extend(head.graph.initializer)
    host.functions.extend(head.functions)
    present = {opset.domain for opset in host.opset_import}
    host.opset_import.extend(opset for opset in head.opset_import if opset.domain not in present)
    host.ir_version = max(host.ir_version, head.ir_version)
    return host


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename tensors wherever nodes read or write them, inside branches and loops too."""
    for node in graph.node:
        for tensors in (node.input, node.output):
            for i, name in enumerate(tensors):
                tensors[i] = names.get(name, name)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names)


def _describe(proto: Any, model: OnnxModel, calibrator: Calibrator) -> None:
    """Write into the file how images are prepared for it and what calibrates it."""
    steps = asdict(model.preprocess) | {"size": model.size, "output": model.output, "activation": "none"}
    metadata = {
        "densecal": __version__,
        "preprocess": json.dumps(steps),
        "calibrator": json.dumps(calibrator.to_json()),
    }
    kept = [entry for entry in proto.metadata_props if entry.key not in metadata]
    del proto.metadata_props[:]
    proto.metadata_props.extend(kept)
    for key, value in metadata.items():
        proto.metadata_props.add(key=key, value=value)
    proto.producer_name, proto.producer_version = "densecal", __version__


@torch.no_grad()
def _compare(
    content: bytes,
    model: OnnxModel,
    head: _Head,
    samples: list[NDArray[np.uint8]],
    expected: list[dict[str, NDArray[Any]]],
    progress: Progress,
) -> tuple[float, int]:
    """Run the new file and compare all its outputs; return the largest difference and the number of pixels left out."""
    try:
        folded = model.reopen(content)
        results = []
        for done, sample in enumerate(samples, start=len(samples) + 1):
            progress("Running the new file", done, 2 * len(samples) + 1)
            results.append(folded.outputs([sample]))
    except InputError as error:
        raise ExportError(f"onnxruntime does not run the file: {error.found}") from None
    progress("Running the new file", 2 * len(samples) + 1, 2 * len(samples) + 1)
    worst, on_steps = 0.0, 0
    for result, before in zip(results, expected, strict=True):
        for name, values in before.items():
            if name == model.output:
                z = head.logits(torch.from_numpy(values))
                p = torch.from_numpy(result[name]).float().reshape(z.shape)
                comparison = compare_batch(p, z, torch.empty(0), head.calibrator)
                worst, on_steps = max(worst, comparison.difference), on_steps + comparison.on_steps
            elif values.dtype.kind == "f":
                scale = max(1.0, float(np.abs(values).max(initial=0)))
                worst = max(worst, float(np.abs(result[name] - values).max(initial=0)) / scale)
    tolerance = TOLERANCE if model.output_type == "tensor(float)" else 2e-3  # float16 has 11 bits
    if not worst <= tolerance:
        raise ExportError(f"the file differs from the original by {worst:.1e}; expected {tolerance:.0e}")
    return worst, on_steps
