"""Predicting: a trained model and a folder of images in, a folder of probability maps out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import interpolate

from densecal.data import Source, open_source
from densecal.errors import InputError
from densecal.files import write_atomically
from densecal.models import build
from densecal.training import checkpoint
from densecal.training.config import Config, parse_config
from densecal.training.feed import prefetched

FORMATS = ("png16", "png8", "npy")
_LEVELS = {"png16": (np.uint16, 65535), "png8": (np.uint8, 255)}

Array = NDArray[Any]


@dataclass(frozen=True)
class Predictor:
    """A trained model ready for use.

    Attributes:
        model: The network in evaluation mode.
        config: The configuration it was trained with.
        device: Where it is.
    """

    model: nn.Module
    config: Config
    device: torch.device

    @torch.inference_mode()
    def logits(self, images: list[Array]) -> list[Tensor]:
        """Logits (classes, H, W) of images (H, W, 3) uint8 of any size, each at its own size.

        Images are resized to the size the network was trained at and the logits are resized back, bilinearly.
        """
        size = self.config.data.size
        resized = [
            np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR)) for image in images
        ]
        batch = torch.from_numpy(np.stack(resized)).to(self.device).permute(0, 3, 1, 2).float() / 255
        logits = self.model(batch).float()
        return [
            interpolate(one[None], size=image.shape[:2], mode="bilinear", align_corners=False)[0]
            for one, image in zip(logits, images, strict=True)
        ]

    def probabilities(self, images: list[Array]) -> list[Tensor]:
        """Foreground probabilities (H, W), or class probabilities (K, H, W)."""
        if self.config.data.classes == 1:
            return [logits[0].sigmoid() for logits in self.logits(images)]
        return [logits.softmax(dim=0) for logits in self.logits(images)]


def load_predictor(run_or_checkpoint: Path, device: str = "auto") -> Predictor:
    """Load the model of a run folder (its last checkpoint) or of a checkpoint folder."""
    folder = checkpoint.find(run_or_checkpoint)
    found = checkpoint.load(folder)
    config = parse_config(found.meta["config"], str(folder / checkpoint.META))
    if device not in ("auto", "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError("--device", device, "auto, cpu, or cuda where there is one")
    where = torch.device(
        "cuda" if device == "auto" and torch.cuda.is_available() else "cpu" if device == "auto" else device
    )
    model = build(config.model.arch, config.model.encoder, None, config.data.classes, **config.model.options)
    try:
        model.load_state_dict(found.model)
    except RuntimeError as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(folder / checkpoint.MODEL, problem, f"weights of {config.model.arch}") from None
    return Predictor(model.to(where).eval(), config, where)


def predict(
    predictor: Predictor,
    images: Path,
    out: Path,
    *,
    format: str | None = None,
    uncertainty: bool = False,
    batch: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the probability map of every image of a folder; no map is ever stretched to its own range.

    Args:
        predictor: The model.
        images: Folder of images, a zip with ``images/``, or a list file.
        out: Folder for the maps, one a stem.
        format: ``png16`` (default), ``png8`` or ``npy`` (float32; the default for several classes).
        uncertainty: Also write the confidence of the winning class and the entropy, as a share of its maximum, into
            ``confidence/`` and ``entropy/``.
        batch: Images at a time.
        progress: Called with (done, total).

    Returns:
        Number of maps written.
    """
    several = predictor.config.data.classes > 1
    format = format or ("npy" if several else "png16")
    if format not in FORMATS or (several and format != "npy"):
        raise InputError("--format", format, "npy for several classes, else one of " + ", ".join(FORMATS))
    source = open_source(images)
    done = 0
    for names, arrays in prefetched(_read(source, batch)):
        for name, probability in zip(names, predictor.probabilities(arrays), strict=True):
            p = probability.double().cpu().numpy()
            _write(out / name, p, format)
            if uncertainty:
                confidence, entropy = _uncertainty(p)
                _write(out / "confidence" / name, confidence, format)
                _write(out / "entropy" / name, entropy, format)
        done += len(names)
        if progress:
            progress(done, len(source.names))
    return done


def _read(source: Source, batch: int) -> Iterator[tuple[list[str], list[Array]]]:
    for first in range(0, len(source.names), batch):
        names = source.names[first : first + batch]
        yield names, [source.image(name) for name in names]


def _uncertainty(p: Array) -> tuple[Array, Array]:
    """Confidence of the winning class, and entropy divided by its maximum."""
    classes = np.stack([1.0 - p, p]) if p.ndim == 2 else p
    logs = np.log(np.clip(classes, 1e-300, 1.0))
    return classes.max(axis=0), -(classes * logs).sum(axis=0) / np.log(len(classes))


def _write(stem: Path, p: Array, format: str) -> None:
    """A map in its format; the stem may hold dots."""
    if format == "npy":
        write_atomically(stem.with_name(f"{stem.name}.npy"), lambda stream: np.save(stream, p.astype(np.float32)))
        return
    kind, top = _LEVELS[format]
    image = Image.fromarray(np.rint(p * top).astype(kind))
    write_atomically(stem.with_name(f"{stem.name}.png"), lambda stream: image.save(stream, "png", compress_level=1))
