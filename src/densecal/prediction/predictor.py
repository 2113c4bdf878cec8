"""The predictor: a trained model and images in, probabilities out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate

from densecal import posthoc
from densecal.errors import InputError
from densecal.kernels import accelerate
from densecal.kernels.folding import Model
from densecal.models import build
from densecal.models.criterion import is_plain
from densecal.posthoc import Calibrator
from densecal.prediction.batches import LARGE_PIXELS, Chunks
from densecal.prediction.tiles import Tiling, blend
from densecal.training import checkpoint
from densecal.training.config import Config, parse_config

_CHUNK_VALUES = 1 << 22

Array = NDArray[Any]


@dataclass(frozen=True)
class Predictor:
    """A trained model ready for use.

    Attributes:
        model: The network, as ``prepare_model`` returns it.
        config: The configuration it was trained with.
        device: Where it is.
        calibrator: Turns its logits into probabilities, in place of sigmoid or softmax.
    """

    model: nn.Module
    config: Config
    device: torch.device
    calibrator: Calibrator | None = None

    def logits(self, images: list[Array]) -> list[Tensor]:
        """Return logits (classes, H, W) of images (H, W, 3) uint8 of any size, each at its own size.

        Images are resized to the size the network was trained at and the logits are resized back, bilinearly.
        """
        return list(self.each_logits(images))

    @torch.inference_mode()
    def each_logits(self, images: list[Array]) -> Iterator[Tensor]:
        """Yield the same logits one by one, because those of many classes and a large image take much memory."""
        for one, image in zip(self._logits_of_resized(images), images, strict=True):
            yield interpolate(one[None], size=image.shape[:2], mode="bilinear", align_corners=False)[0]

    def probabilities(self, images: list[Array]) -> list[Tensor]:
        """Return foreground probabilities (H, W), or class probabilities (K, H, W), per image."""
        maps = [self._probabilities(logits) for logits in self.logits(images)]
        return [p[0] for p in maps] if self.config.data.classes == 1 else maps

    def chunks(self, images: list[Array], like_onnx: bool = False) -> Iterator[Chunks]:
        """Yield the probabilities of every image in chunks of rows.

        Args:
            images: Images (H, W, 3) uint8 of any size.
            like_onnx: Resize probabilities to the size of the image, as users of an exported file do, and not logits.
        """
        if any(image.shape[0] * image.shape[1] > LARGE_PIXELS for image in images):
            size = self.config.data.size
            warnings.warn(
                f"images of more than {LARGE_PIXELS:,} pixels were resized to {size} x {size} for the network, as in "
                "training; --tile predicts at their own resolution",
                stacklevel=2,
            )
        for one, image in zip(self._logits_of_resized(images), images, strict=True):
            if like_onnx:
                probabilities = _resize_in_chunks(self._probabilities(one), image.shape[:2])
                yield (chunk.cpu().numpy() for chunk in probabilities)
            else:
                yield map(self._to_numpy, _resize_in_chunks(one, image.shape[:2]))

    def tiled_chunks(self, images: list[Array], tiling: Tiling, batch: int = 8) -> Iterator[Chunks]:
        """Yield the probabilities of every image at its own resolution, in chunks of rows.

        As many tiles go through the network at a time as have the pixels of ``batch`` images of the size of training.
        """
        tiles = max(1, batch * self.config.data.size**2 // tiling.tile**2)
        for image in images:
            yield blend(image, (tiling, tiling), self._tile_probabilities, tiles)

    def _logits_of_resized(self, images: list[Array]) -> Tensor:
        side = (self.config.data.size,) * 2
        resized = [np.asarray(Image.fromarray(image).resize(side, Image.Resampling.BILINEAR)) for image in images]
        return self._network(np.stack(resized))

    def _tile_probabilities(self, tiles: Array) -> NDArray[np.float32]:
        try:
            logits = self._network(tiles)
        except (AssertionError, RuntimeError, ValueError) as error:  # not enough memory, or an encoder of one size
            problem = " ".join(str(error).split())[:200]
            expected = f"a side that the network takes, such as {self.config.data.size}, or a smaller --batch"
            raise InputError("--tile", f"{tiles.shape[1]} ({problem})", expected) from None
        return self._to_numpy(logits)

    @torch.inference_mode()
    def _network(self, images: Array) -> Tensor:
        """Return logits (B, classes, H, W) of images (B, H, W, 3) uint8."""
        batch = torch.from_numpy(images).to(self.device).permute(0, 3, 1, 2).float() / 255
        logits: Tensor = self.model(batch).float()
        return logits

    def _to_numpy(self, logits: Tensor) -> NDArray[np.float32]:
        return np.asarray(self._probabilities(logits).cpu().numpy())

    @torch.inference_mode()
    def _probabilities(self, logits: Tensor) -> Tensor:
        """Turn logits (..., classes, H, W) into probabilities."""
        if self.calibrator is not None:
            p: Tensor = self.calibrator(logits.reshape(-1, *logits.shape[-3:]))
            return p.view_as(logits)
        return logits.sigmoid() if self.config.data.classes == 1 else logits.softmax(dim=-3)


def load_predictor(run_or_checkpoint: Path, device: str = "auto") -> Predictor:
    """Load the model of a run folder (its last checkpoint, with its calibrator) or of a checkpoint folder."""
    folder = checkpoint.find(run_or_checkpoint)
    weights, meta = checkpoint.load_model(folder)
    config = parse_config(meta.get("config"), str(folder / checkpoint.META))
    if device not in ("auto", "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError("--device", device, "auto, cpu, or cuda where there is one")
    where = torch.device(
        "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device
    )
    settings = config.model
    try:
        model = build(settings.arch, settings.encoder, None, config.data.classes, **settings.options)
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        raise InputError(folder / checkpoint.META, str(error), "the configuration of a model") from None
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(folder / checkpoint.MODEL, problem, f"weights of {config.model.arch}") from None
    is_run = folder.parent == run_or_checkpoint / "checkpoints"
    calibrator = _own_calibrator(run_or_checkpoint, config) if is_run else None
    model = prepare_model(model, where, config.engine.graphs and is_plain(model.network))
    return Predictor(model, config, where, None if calibrator is None else calibrator.to(where))


def prepare_model(model: Model, device: torch.device, graphs: bool = False) -> Model:
    """Put a network on a device in evaluation mode, as fast as the device allows.

    Args:
        model: The network.
        device: Where it predicts.
        graphs: Replay predictions by CUDA graphs, on CUDA.
    """
    model = model.to(device).to(memory_format=torch.channels_last).eval()  # the layout of decoded images
    return accelerate(model, training=False, graphs=graphs)


def _own_calibrator(run: Path, config: Config) -> Calibrator | None:
    """Load the calibrator that the configuration of a run names."""
    name, path = config.model.calibrator, run / checkpoint.CALIBRATOR
    if name is None:
        return None
    if not path.is_file():
        warnings.warn(f"{run}: its {name} was not fitted, or not yet", stacklevel=3)
        return None
    calibrator = posthoc.load(path)
    if (calibrator.method, calibrator.num_classes) != (name, config.data.classes):
        actual = f"{calibrator.method} for {calibrator.num_classes} classes"
        raise InputError(path, actual, f"{name} for {config.data.classes}, as the run has")
    return calibrator


def own_calibrator_error(run: Path, calibrator: Calibrator) -> InputError:
    """Return the error for a second calibrator on top of a run's own."""
    plain = checkpoint.find(run)
    return InputError(run, f"a run with its own {calibrator.method}", f"its model without it, such as {plain}")


def _resize_in_chunks(z: Tensor, size: tuple[int, ...]) -> Iterator[Tensor]:
    """Resize (C, h, w) to (C, H, W) bilinearly, as ``interpolate`` does, in chunks of rows."""
    height, width = size
    rows = max(1, _CHUNK_VALUES // (len(z) * width))
    if rows >= height:
        yield interpolate(z[None], size=(height, width), mode="bilinear", align_corners=False)[0]
        return
    last = z.shape[1] - 1
    for first in range(0, height, rows):
        y = torch.arange(first, min(first + rows, height), dtype=torch.float64, device=z.device)
        y = ((y + 0.5) * (z.shape[1] / height) - 0.5).clamp(0, last)
        above = y.long()
        chunk = torch.lerp(z[:, above], z[:, (above + 1).clamp(max=last)], (y - above).to(z.dtype)[:, None])
        yield interpolate(chunk[None], size=(len(y), width), mode="bilinear", align_corners=False)[0]
