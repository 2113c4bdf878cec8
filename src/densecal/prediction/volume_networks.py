"""Networks for volumes: files of ONNX, `torch.export` and TorchScript, and modules in memory, behind one call."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED

import numpy as np
from numpy.typing import NDArray

from densecal.errors import InputError
from densecal.io.archives import Archive
from densecal.prediction.onnx_model import TYPES, is_onnx, open_session, output_name

if TYPE_CHECKING:
    from torch import Tensor, device

Floats = NDArray[np.float32]
_EXPORT_SUFFIXES = (".pt2",)
_TORCHSCRIPT_SUFFIXES = (".pt", ".pth", ".ts", ".torchscript")
_EXPECTED = "a file of torch.export.save or torch.jit.save; weights alone need their code (predict_volumes)"
_MAX_COMPRESSED = 1 << 28
"""Bytes of all compressed members of a file, which hold code. Weights are stored as they are."""
_SHAPE = "a batch of volumes (B, channels, D, H, W)"


@dataclass(frozen=True)
class VolumeNetwork:
    """A network for volumes, ready for use.

    Attributes:
        name: Its name in errors.
        run: From tiles (B, channels, space) to one of its outputs.
        sides: Sides of the tiles, where it takes only one size.
        batch: Tiles at a time, where it takes only one number of them.
        channels: Channels of its input, where that is known.
    """

    name: str
    run: Callable[[Floats], Floats]
    sides: tuple[int, int, int] | None = None
    batch: int | None = None
    channels: int | None = None

    def output(self, tiles: Floats) -> Floats:
        """Return the output (B, K, space) for tiles (B, channels, space).

        Raises:
            InputError: The network does not take them, or returns something else.
        """
        original = tiles
        if self.channels is not None and tiles.shape[1] != self.channels:
            raise InputError(self.name, f"volumes of {tiles.shape[1]} channels", f"{self.channels}, as the network has")
        if self.batch is not None and self.batch > len(tiles):
            tiles = np.concatenate([tiles, np.repeat(tiles[-1:], self.batch - len(tiles), axis=0)])
        try:
            output = self.run(tiles)
        except InputError:
            raise
        except (AssertionError, RuntimeError, ValueError, TypeError) as error:
            problem = " ".join(str(error).split())[-200:]
            expected = f"a network that takes tiles of shape {tiles.shape}, or another --tile or --batch"
            raise InputError(self.name, problem, expected) from None
        output = output[:, None] if output.ndim == 4 else output
        if output.ndim != 5 or output.shape[0] != len(tiles) or output.shape[2:] != tiles.shape[2:]:
            expected = f"(B, K, D, H, W) of the size of the input {tiles.shape}: another output in --preprocess"
            raise InputError(self.name, f"an output of shape {output.shape}", expected)
        return output[: len(original)]


def is_torch_file(path: Path) -> bool:
    """Return whether a model is a file of `torch.export` or TorchScript, by its name."""
    return path.suffix.lower() in _EXPORT_SUFFIXES + _TORCHSCRIPT_SUFFIXES and not path.is_dir()


def load_volume_network(path: Path, output: int | str = 0, device: str = "auto") -> VolumeNetwork:
    """Load a network for volumes from a file.

    Args:
        path: A file of ONNX, of `torch.export` (.pt2) or of TorchScript (.pt).
        output: Index or name of the output with the maps.
        device: auto, cpu or cuda.

    Files of PyTorch are programs, which can do whatever the user can. Load only those of people you trust.
    """
    if is_onnx(path):
        return _load_onnx(path, output, device)
    if not is_torch_file(path):
        expected = "a file of ONNX (.onnx), torch.export (.pt2) or TorchScript (.pt); other models take pictures"
        raise InputError(path, "volumes to predict", expected)
    if not path.is_file():
        raise InputError(path, "no such file", "a network")
    _check_size(path)
    load = _load_exported if path.suffix.lower() in _EXPORT_SUFFIXES else _load_torchscript
    logger = logging.getLogger("torch.export")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is deprecated, but files of it are everywhere
            logger.disabled = True  # of damaged files it prints a traceback
            return load(path, output, device)
    except InputError:
        raise
    except Exception as error:  # damaged files raise errors of every kind
        problem = " ".join(str(error).split())[:100]
        raise InputError(path, f"no network ({problem})", _EXPECTED) from None
    finally:
        logger.disabled = False


def _check_size(path: Path) -> None:
    """Refuse a file of PyTorch that would need far more memory than it has bytes."""
    with Archive(path, _EXPECTED) as archive:
        stored = [one.file_size for one in archive.members if one.compress_type == ZIP_STORED]
        others = [one.file_size for one in archive.members if one.compress_type != ZIP_STORED]
    if sum(stored) > path.stat().st_size or sum(others) > _MAX_COMPRESSED:
        raise InputError(path, f"members of {sum(stored) + sum(others):,} bytes", "no more than the file can hold")


def module_network(
    module: Callable[[Tensor], Any],
    output: int | str = 0,
    device: str = "auto",
    name: str = "the network",
    channels: int | None = None,
) -> VolumeNetwork:
    """Wrap a `torch.nn.Module`, or any function from tensors (B, channels, space) to tensors.

    Args:
        module: The network; a module is moved to the device and put into evaluation mode.
        output: Index or name of the output with the maps, where it returns several.
        device: auto, cpu or cuda.
        name: Its name in errors.
        channels: Channels of its input.
    """
    import torch

    where = torch_device(device)
    if isinstance(module, torch.nn.Module):
        module.to(where).eval()

    @torch.inference_mode()
    def run(tiles: Floats) -> Floats:
        result = _choose(module(torch.from_numpy(tiles).to(where)), output, name)
        return np.asarray(result.float().cpu().numpy())

    return VolumeNetwork(name, run, channels=channels)


def torch_device(device: str) -> device:
    """Return the device that an option names."""
    import torch

    if device not in ("auto", "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError("--device", device, "auto, cpu, or cuda where there is one")
    return torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")


def _choose(result: Any, output: int | str, name: str) -> Any:
    """Return one output of a network that returns a tensor, several tensors, or tensors by name."""
    from torch import is_tensor

    problem: str | None = None
    if isinstance(result, Mapping):
        keys = list(result)
        key = keys[output] if isinstance(output, int) and output < len(keys) else output
        problem = None if key in result else f"outputs {', '.join(map(str, keys))}"
        result = result.get(key)
    elif isinstance(result, Sequence):
        fits = isinstance(output, int) and output < len(result)
        problem = None if fits else f"{len(result)} outputs"
        result = result[output] if isinstance(output, int) and fits else None
    elif output != 0:
        problem = "one output"
    if problem is not None:
        raise InputError(name, problem, f"an output {output!r} (output in --preprocess)")
    if not is_tensor(result):
        raise InputError(name, f"an output of type {type(result).__name__}", "a tensor (output in --preprocess)")
    return result


def _load_torchscript(path: Path, output: int | str, device: str) -> VolumeNetwork:
    import torch

    module: Any = torch.jit.load(str(path), torch_device(device))  # type: ignore[no-untyped-call]
    return module_network(module, output, device, str(path))


def _load_exported(path: Path, output: int | str, device: str) -> VolumeNetwork:
    import torch

    exported = torch.export.load(path)
    inputs = [node for node in exported.graph.nodes if node.name in exported.graph_signature.user_inputs]
    shapes = [node.meta["val"].shape for node in inputs]
    if len(shapes) != 1 or len(shapes[0]) != 5:
        listing = ", ".join(str(tuple(shape)) for shape in shapes)
        raise InputError(path, f"inputs of shape {listing}", f"one input, {_SHAPE}")
    module = exported.module().to(torch_device(device))
    network = module_network(lambda x: module(x), output, device, str(path))  # it has no eval()
    return _with_lengths(network, [int(one) if isinstance(one, int) else None for one in shapes[0]])


def _with_lengths(network: VolumeNetwork, lengths: Sequence[int | None]) -> VolumeNetwork:
    """Add what a file says about the lengths of its input (B, channels, D, H, W); ``None`` where they are free."""
    batch, channels, *sides = lengths
    fixed = [side for side in sides if side is not None]
    if len(fixed) not in (0, 3):
        shape = ", ".join("any" if length is None else str(length) for length in lengths)
        raise InputError(network.name, f"an input of shape ({shape})", "three sides, all of them free or all fixed")
    return replace(network, sides=(fixed[0], fixed[1], fixed[2]) if fixed else None, batch=batch, channels=channels)


def _load_onnx(path: Path, output: int | str, device: str) -> VolumeNetwork:
    session = open_session(path, device)
    about = session.get_inputs()[0]
    if len(session.get_inputs()) != 1 or about.type not in TYPES or len(about.shape) != 5:
        inputs = ", ".join(f"{one.name}: {one.type} {one.shape}" for one in session.get_inputs())
        raise InputError(path, f"inputs {inputs}", f"one input, {_SHAPE}")
    chosen = output_name(path, [one.name for one in session.get_outputs()], output)

    def run(tiles: Floats) -> Floats:
        values = tiles.astype(TYPES[about.type])
        try:
            outputs: list[Any] = session.run([chosen], {about.name: values})
        except Exception as error:  # onnxruntime's error classes are private
            raise ValueError(str(error)) from None
        return np.asarray(outputs[0], np.float32)

    lengths = [length if isinstance(length, int) else None for length in about.shape]
    return _with_lengths(VolumeNetwork(str(path), run), lengths)
