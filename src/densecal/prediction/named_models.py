"""Segmentation networks by name: `hf:` for transformers, `torchvision:` for torchvision.

Their own preprocessing prepares the images. Their logits are resized to the image bilinearly and become probabilities
there, as in the metrics of both libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from densecal.errors import InputError
from densecal.prediction.batches import Chunks
from densecal.runtime.extras import require

HF, TORCHVISION = "hf:", "torchvision:"
_HELP = "a model that was downloaded before, a local folder, or a connection to download it"


@dataclass(frozen=True)
class NamedModel:
    """A network by name, ready for use.

    Attributes:
        name: The name.
        logits: From one image (H, W, 3) of bytes to logits (classes, h, w).
        classes: 1 for a foreground map, K for K classes.
    """

    name: str
    logits: Callable[[NDArray[np.uint8]], Tensor]
    classes: int

    def chunks(self, images: list[NDArray[np.uint8]]) -> Iterator[Chunks]:
        """Yield the probabilities (classes, H, W) of images (H, W, 3) of bytes, at the size of each image."""
        for image in images:
            with torch.inference_mode():
                z = self.logits(image).float()[None]
                z = torch.nn.functional.interpolate(z, size=image.shape[:2], mode="bilinear", align_corners=False)[0]
                p = z.sigmoid() if self.classes == 1 else z.softmax(dim=0)
            yield iter([p.cpu().numpy()])


def load_named(name: str, device: str = "auto") -> NamedModel:
    """Load a network by name, from the cache of its library or from the internet.

    Args:
        name: `hf:` and a model of the Hugging Face Hub or a local folder, or `torchvision:` and the name of a model.
        device: auto, cpu or cuda.

    Raises:
        InputError: There is no such model, or it cannot be downloaded.
    """
    if device not in ("auto", "cpu", "cuda") or (device == "cuda" and not torch.cuda.is_available()):
        raise InputError("--device", device, "auto, cpu, or cuda where there is one")
    where = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    load = _from_hub if name.startswith(HF) else _from_torchvision
    try:
        return load(name, where)
    except InputError:
        raise
    except ImportError as error:
        raise InputError(name, str(error), "that package") from None
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:140]
        raise InputError(name, f"cannot be loaded ({reason or type(error).__name__})", _HELP) from None


def _from_hub(name: str, where: torch.device) -> NamedModel:
    transformers = require(HF, "transformers")
    source = name.removeprefix(HF)
    processor = transformers.AutoImageProcessor.from_pretrained(source)
    model = transformers.AutoModelForSemanticSegmentation.from_pretrained(source).to(where).eval()

    def logits(image: NDArray[np.uint8]) -> Tensor:
        inputs = processor(images=[np.array(image)], return_tensors="pt").to(where)
        output: Tensor = model(pixel_values=inputs["pixel_values"]).logits[0]
        return output

    return NamedModel(name, logits, int(model.config.num_labels))


def _from_torchvision(name: str, where: torch.device) -> NamedModel:
    models: Any = require(TORCHVISION, "torchvision.models")
    known = models.list_models(module=models.segmentation)
    chosen = name.removeprefix(TORCHVISION)
    if chosen not in known:
        raise InputError(name, "no segmentation model of torchvision", ", ".join(known))
    weights = models.get_model_weights(chosen).DEFAULT
    model = models.get_model(chosen, weights=weights).to(where).eval()
    prepare = weights.transforms()

    def logits(image: NDArray[np.uint8]) -> Tensor:
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        output: Tensor = model(prepare(pixels)[None].to(where))["out"][0]
        return output

    return NamedModel(name, logits, len(weights.meta["categories"]))
