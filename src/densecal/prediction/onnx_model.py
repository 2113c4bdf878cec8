"""A network in an ONNX file, run by onnxruntime: images in, probability maps out, without torch."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from densecal.errors import InputError
from densecal.prediction.batches import Chunks
from densecal.prediction.preprocess import PRESETS, Preprocess, activate, parse_preprocess, read_preprocess
from densecal.runtime.cores import cores

Array = NDArray[Any]

TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(uint8)": np.uint8}


@dataclass(frozen=True)
class OnnxModel:
    """A network in an ONNX file, ready for use.

    Attributes:
        path: The file.
        session: The session of onnxruntime.
        preprocess: How images are prepared, and what the output means.
        size: Height and width of the input.
        channels_last: Whether the input is (B, H, W, 3) and not (B, 3, H, W).
        output: Name of the output with the maps.
        classes: 1 for a foreground map, K for K classes.
        exported: Whether `densecal export` made it from a run.
    """

    path: Path
    session: Any
    preprocess: Preprocess
    size: tuple[int, int]
    channels_last: bool
    output: str
    classes: int
    exported: bool = False

    def chunks(self, images: list[Array]) -> Iterator[Chunks]:
        """Yield the probabilities (classes, H, W) of images (H, W, 3) of bytes, at the size of each image.

        The maps of the network are resized bilinearly, and never stretched to their own range. Those of an exported run
        are resized as the run's own; those of other networks by Pillow, as their authors do, which averages where it
        makes a map smaller.
        """
        resize = _interpolate if self.exported else _resize
        for p, image in zip(self.maps(images), images, strict=True):
            yield iter([np.stack([resize(one, image.shape[:2]) for one in p])])

    def maps(self, images: list[Array]) -> Iterator[NDArray[np.float32]]:
        """Yield the probabilities (classes, h, w) of images, at the size of the network's output."""
        inputs = self._inputs(images)
        fixed = self.session.get_inputs()[0].shape[0]
        step = fixed if isinstance(fixed, int) else len(inputs)
        for first in range(0, len(inputs), step):
            part = inputs[first : first + step]
            missing = step - len(part)  # copies of the last image fill the batch of a network with a fixed batch size
            batch = np.concatenate([part, np.repeat(part[-1:], missing, axis=0)]) if missing else part
            yield from self.probabilities(self._run([self.output], batch)[0])[: len(part)]

    def outputs(self, images: list[Array]) -> dict[str, Array]:
        """Return all outputs of the network, as they are, for a batch that it takes."""
        names = [one.name for one in self.session.get_outputs()]
        inputs = self._inputs(images)
        fixed = self.session.get_inputs()[0].shape[0]
        batch = np.repeat(inputs, fixed, axis=0) if isinstance(fixed, int) else inputs
        return dict(zip(names, self._run(names, batch), strict=True))

    def probabilities(self, output: Array) -> NDArray[np.float32]:
        """Turn an output (B, K, H, W) or (B, H, W) into probabilities (B, K, H, W).

        Raises:
            InputError: It has another shape; the message names the key of the preprocessing that would help.
        """
        z = np.asarray(output if output.ndim == 4 else output[:, None], np.float32)
        if z.ndim != 4 or z.shape[1] != self.classes:
            shape = f"output {self.output!r} of shape {output.shape}"
            raise InputError(
                self.path, shape, "(B, H, W), (B, 1, H, W) or (B, K, H, W): another output in --preprocess"
            )
        return activate(z, self.preprocess.activation, self.path, f"output {self.output!r}")

    def reopen(self, content: bytes) -> OnnxModel:
        """Return a model like this one from another file with the same inputs and outputs."""
        return replace(self, session=open_session(self.path, "cpu", content))

    @property
    def output_type(self) -> str:
        """Type of the output with the maps, in onnxruntime's words."""
        return next(str(one.type) for one in self.session.get_outputs() if one.name == self.output)

    def _inputs(self, images: list[Array]) -> Array:
        inputs = np.stack([self.preprocess.input(image, self.size) for image in images])
        ordered = inputs if self.channels_last else inputs.transpose(0, 3, 1, 2)
        return ordered.astype(TYPES[self.session.get_inputs()[0].type])

    def _run(self, names: list[str], batch: Array) -> list[Array]:
        try:
            outputs: list[Array] = self.session.run(names, {self.session.get_inputs()[0].name: batch})
        except Exception as error:  # onnxruntime's error classes are private
            problem = " ".join(str(error).split())[:200]
            raise InputError(self.path, problem, f"a network that takes an input of shape {batch.shape}") from None
        return outputs


def is_onnx(path: Path) -> bool:
    """Return whether a model is an ONNX file, by its name."""
    return path.suffix.lower() == ".onnx"


def load_onnx(path: Path, preprocess: str | None = None, device: str = "auto") -> OnnxModel:
    """Load a network from an ONNX file.

    Args:
        path: The file.
        preprocess: A preset's name or a YAML file; not needed for files that `densecal export` wrote.
        device: auto or cpu, or cuda with onnxruntime-gpu.

    Raises:
        InputError: It cannot be used; the message names the key of the preprocessing that would help.
    """
    session = open_session(path, device)
    about = session.get_inputs()[0]
    if len(session.get_inputs()) != 1 or about.type not in TYPES or len(about.shape) != 4:
        inputs = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in session.get_inputs())
        raise InputError(path, f"inputs {inputs}", "one input, a batch of images of floats or bytes")
    metadata = session.get_modelmeta().custom_metadata_map
    if preprocess is not None:
        steps = read_preprocess(preprocess)
    elif "densecal" in metadata:
        steps = own_preprocess(metadata, path)
    else:
        expected = f"--preprocess with one of {', '.join(PRESETS)} or a YAML file"
        raise InputError(path, "no record of how images are prepared", expected)
    channels_last = _is_channels_last(path, about.shape)
    size = _input_size(path, about.shape[1:3] if channels_last else about.shape[2:], steps.size)
    output = output_name(path, [one.name for one in session.get_outputs()], steps.output)
    exported = preprocess is None and "preprocess" not in metadata
    model = OnnxModel(path, session, steps, size, channels_last, output, 1, exported)
    model = replace(model, classes=_classes(model))
    if model.classes == 1 and steps.activation == "softmax":
        raise InputError(path, "softmax over one channel, which is 1 everywhere", "activation: sigmoid in --preprocess")
    return model


def own_preprocess(metadata: Mapping[str, str], path: Path) -> Preprocess:
    """Return the preprocessing of a file that `densecal export` wrote, from its metadata.

    Raises:
        InputError: The metadata is not what `densecal export` writes.
    """
    try:
        if "preprocess" in metadata:
            return parse_preprocess(json.loads(metadata["preprocess"]), str(path))
        values = {key: json.loads(metadata[key]) for key in ("size", "mean", "std")}
        preprocess = parse_preprocess(values, str(path))
        kind = metadata["input"]
    except (KeyError, ValueError) as error:
        raise InputError(path, f"damaged metadata ({error})", "a file of densecal export, or --preprocess") from None
    if kind == "normalised":
        return preprocess
    return Preprocess(size=preprocess.size, scale=1.0 if kind == "uint8" else 255.0)


def output_name(path: Path, names: list[str], output: int | str) -> str:
    """Return the name of an output by its index or name.

    Raises:
        InputError: There is no such output.
    """
    if output in names:
        return str(output)
    if not isinstance(output, int) or output >= len(names):
        raise InputError(path, f"no output {output!r}", f"0 to {len(names) - 1}, or one of {', '.join(names)}")
    return names[output]


def open_session(path: Path, device: str, content: bytes | None = None) -> Any:
    """Return a session of onnxruntime for a file, or for its content."""
    if importlib.util.find_spec("onnxruntime") is None:
        raise InputError("onnxruntime", "not installed", "pip install onnxruntime")
    if content is None and not path.is_file():
        raise InputError(path, "no such file", "an ONNX file")
    import onnxruntime

    providers = onnxruntime.get_available_providers()
    if device not in ("auto", "cpu", "cuda") or (device == "cuda" and "CUDAExecutionProvider" not in providers):
        raise InputError("--device", device, "auto or cpu, or cuda with onnxruntime-gpu")
    use_cuda = device != "cpu" and "CUDAExecutionProvider" in providers
    options = onnxruntime.SessionOptions()
    threads = os.environ.get("OMP_NUM_THREADS", "")
    options.intra_op_num_threads = int(threads) if threads.isdecimal() else cores()
    options.log_severity_level = 4  # log nothing: errors are raised anyway
    try:
        order = ["CUDAExecutionProvider"] * use_cuda + ["CPUExecutionProvider"]
        return onnxruntime.InferenceSession(content or str(path), options, providers=order)
    except Exception as error:  # onnxruntime's error classes are private
        problem = " ".join(str(error).split())[:200]
        raise InputError(path, f"unreadable ({problem})", "an ONNX file that onnxruntime can run") from None


def _is_channels_last(path: Path, shape: list[Any]) -> bool:
    first, last = shape[1] == 3, shape[3] == 3
    if first == last:
        raise InputError(path, f"an input of shape {shape}", "(B, 3, H, W) or (B, H, W, 3)")
    return bool(last)


def _input_size(path: Path, sides: list[Any], preferred: tuple[int, int] | None) -> tuple[int, int]:
    """Return the height and width of the input, which the file or the preprocessing must fix."""
    height, width = (side if isinstance(side, int) else None for side in sides)
    if preferred is None and (height is None or width is None):
        raise InputError(path, "a network for images of any size", "size in --preprocess, the side it was trained at")
    size = preferred or (height or 0, width or 0)
    if (height or size[0], width or size[1]) != size:
        raise InputError(path, f"an input of {height} x {width}", f"{size[0]} x {size[1]}, the size of --preprocess")
    return size


def _classes(model: OnnxModel) -> int:
    """Return the number of channels of the maps; where the file does not say, run it on a black image."""
    shape = next(one.shape for one in model.session.get_outputs() if one.name == model.output)
    if len(shape) not in (3, 4) or (len(shape) == 4 and not isinstance(shape[1], int)):
        shape = model.outputs([np.zeros((*model.size, 3), np.uint8)])[model.output].shape
    if len(shape) not in (3, 4):
        expected = "(B, H, W), (B, 1, H, W) or (B, K, H, W): another output in --preprocess"
        raise InputError(model.path, f"output {model.output!r} of shape {tuple(shape)}", expected)
    return shape[1] if len(shape) == 4 else 1


def _resize(p: NDArray[np.float32], size: tuple[int, ...]) -> NDArray[np.float32]:
    """Resize a map (h, w) bilinearly, and clip rounding errors to [0, 1]."""
    height, width = size
    resized = Image.fromarray(p).resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(resized, np.float32).clip(0, 1)


def _interpolate(p: NDArray[np.float32], size: tuple[int, ...]) -> NDArray[np.float32]:
    """Interpolate a map (h, w) bilinearly as torch does, without averaging where the map gets smaller."""
    for axis, side in enumerate(size):
        last = p.shape[axis] - 1
        at = ((np.arange(side) + 0.5) * p.shape[axis] / side - 0.5).clip(0, last)
        low = at.astype(np.int64)
        weight = np.expand_dims((at - low).astype(np.float32), 1 - axis)
        p = p.take(low, axis) * (1 - weight) + p.take(np.minimum(low + 1, last), axis) * weight
    return p.clip(0, 1)
