"""U-Net, FPN and DeepLabv3+ of segmentation-models-pytorch, on timm encoders."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from densecal.models.encoders import encoder_options, import_extra, skeleton
from densecal.models.registry import architecture


@architecture("unet")
def unet(encoder: str, classes: int, **options: Any) -> nn.Module:
    """Build smp's U-Net."""
    return _build("Unet", encoder, classes, options)


@architecture("fpn")
def fpn(encoder: str, classes: int, **options: Any) -> nn.Module:
    """Build smp's feature pyramid network."""
    return _build("FPN", encoder, classes, options)


@architecture("deeplabv3plus")
def deeplabv3plus(encoder: str, classes: int, **options: Any) -> nn.Module:
    """Build smp's DeepLabv3+, on encoders that timm can dilate (ResNet and similar ones, but not VGG and Swin)."""
    _check_dilation(encoder, options.get("encoder_output_stride", 16))
    return _build("DeepLabV3Plus", encoder, classes, options)


def _check_dilation(encoder: str, stride: int) -> None:
    """Raise a ValueError unless timm can dilate the encoder so that its last features have the stride."""
    try:
        info: Any = skeleton(encoder, features_only=True, output_stride=stride).feature_info
        reached = info.reduction()[-1]
    except (AssertionError, TypeError):
        reached = None
    # Some encoders refuse another stride, some ignore it.
    if reached != stride:
        raise ValueError(f"timm cannot dilate it to stride {stride}; unet and fpn need no dilation")


def _build(network: str, encoder: str, classes: int, options: dict[str, Any]) -> nn.Module:
    """Build a network of smp with random weights.

    The prefix ``tu-`` takes every encoder from timm, even if smp has its own version, so that a name means the same
    layers, keys and weights in all architectures.
    """
    constructor = getattr(import_extra("segmentation_models_pytorch"), network)
    known = [name for name in inspect.signature(constructor.__init__).parameters if _is_option(name)]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r}; expected one of {', '.join(known)}")
    model = constructor(f"tu-{encoder}", encoder_weights=None, classes=classes, **encoder_options(encoder), **options)
    assert isinstance(model, nn.Module)
    return model


def _is_option(name: str) -> bool:
    """Return whether users may set a parameter. ``build`` sets the others, or they change what the outputs mean."""
    return name.startswith("decoder_") or name in ("encoder_depth", "encoder_output_stride")
