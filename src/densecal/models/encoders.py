"""Encoders from timm: names, input statistics, and feature maps at given strides."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from densecal.runtime.extras import require
from densecal.runtime.registry import suggestion


def import_extra(module: str) -> Any:
    """Import a package of the extra ``train``."""
    return require("densecal.models", module, install="'densecal[train]'")


def check_encoder(encoder: str) -> None:
    """Raise a ValueError with close matches unless timm knows the encoder (``name`` or ``name.tag``)."""
    timm = import_extra("timm")
    name, _, tag = encoder.partition(".")
    if not timm.is_model(name):
        hint = suggestion(name, timm.list_models()) or "no name is close to it"
        raise ValueError(f"unknown encoder {encoder!r}; {hint}")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{name}.*")]
    if tag and tag not in tags:
        hint = suggestion(tag, tags) or f"expected one of {', '.join(tags)}"
        raise ValueError(f"unknown weights tag {tag!r} of the encoder {name!r}; {hint}")


def input_statistics(encoder: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the mean and standard deviation, for images in [0, 1], that timm's weights were trained with."""
    config = import_extra("timm").get_pretrained_cfg(encoder)
    return config.mean, config.std


def encoder_options(encoder: str) -> dict[str, Any]:
    """Return the options of ``timm.create_model`` with which the encoder takes any multiple of 32.

    timm's Swin takes one image size unless told otherwise, and its first version shifts no windows in a stage whose
    map is a single window at that size. Larger maps need the shift there, or their windows never exchange information.
    """
    options: dict[str, Any] = {}
    if encoder.startswith("swin"):
        options["strict_img_size"] = False
    if encoder.startswith("swin_"):
        options["always_partition"] = True
    return options


def skeleton(encoder: str, **options: Any) -> nn.Module:
    """Create a timm model for its names and shapes alone, on the meta device if timm can."""
    timm = import_extra("timm")
    try:
        with torch.device("meta"):
            model = timm.create_model(encoder, **options)
    except RuntimeError:
        model = timm.create_model(encoder, **options)
    assert isinstance(model, nn.Module)
    return model


def feature_strides(encoder: str) -> list[int]:
    """List the strides of an encoder's feature maps."""
    info: Any = skeleton(encoder, features_only=True).feature_info
    return list(info.reduction())


class FeaturePyramid(nn.Module):
    """Feature maps of a timm encoder at given strides, channels first.

    Args:
        encoder: timm name.
        strides: Strides of the maps, ascending.

    Raises:
        ValueError: If the encoder has no features at one of the strides.
    """

    def __init__(self, encoder: str, strides: Sequence[int] = (4, 8, 16, 32)) -> None:
        super().__init__()
        info: Any = skeleton(encoder, features_only=True).feature_info
        index = dict(zip(info.reduction(), info.out_indices, strict=True))
        absent = [stride for stride in strides if stride not in index]
        if absent:
            raise ValueError(f"its features have strides {info.reduction()}; expected {list(strides)}")
        indices = tuple(index[stride] for stride in strides)
        self.model = import_extra("timm").create_model(
            encoder, features_only=True, out_indices=indices, **encoder_options(encoder)
        )
        self.channels: list[int] = self.model.feature_info.channels()
        self.channels_last = getattr(self.model, "output_fmt", None) == "NHWC"

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return one map (B, C_i, H / stride_i, W / stride_i) per stride."""
        features: list[Tensor] = self.model(images)
        if self.channels_last:
            features = [feature.permute(0, 3, 1, 2).contiguous() for feature in features]
        return features


class EncoderTail(nn.Module):
    """A copy of the layers of an encoder after one of its maps, to be run on a changed version of that map.

    Args:
        pyramid: The encoder.
        level: Index of the map, from 0.

    Raises:
        ValueError: If the encoder is not a chain of layers that can be entered in the middle.
    """

    def __init__(self, pyramid: FeaturePyramid, level: int) -> None:
        super().__init__()
        chain = _chain(pyramid.model)
        maps = [position for position, (_, is_map) in enumerate(chain) if is_map]
        self.first, self.last = maps[level] + 1, maps[-1] + 1
        self.is_map = [is_map for _, is_map in chain[self.first : self.last]]
        self.channels_last = pyramid.channels_last
        self.layers = nn.ModuleList(copy.deepcopy(layer) for layer, _ in chain[self.first : self.last])

    def copy_weights(self, pyramid: FeaturePyramid) -> None:
        """Copy the weights of the encoder's own layers."""
        sources = [layer for layer, _ in _chain(pyramid.model)[self.first : self.last]]
        for layer, source in zip(self.layers, sources, strict=True):
            layer.load_state_dict(source.state_dict())

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the encoder's maps after the one that ``x`` (B, C, H, W) replaces."""
        x = x.permute(0, 2, 3, 1).contiguous() if self.channels_last else x
        maps = []
        for layer, is_map in zip(self.layers, self.is_map, strict=True):
            x = layer(x)
            if is_map:
                maps.append(x.permute(0, 3, 1, 2).contiguous() if self.channels_last else x)
        return maps


def _chain(model: Any) -> list[tuple[nn.Module, bool]]:
    """List the layers of a timm feature extractor, each with whether its output is one of the maps."""
    if hasattr(model, "return_layers"):  # ResNet, VGG, Swin, ConvNeXt and most others
        return [(layer, name in model.return_layers) for name, layer in model.items()]
    if hasattr(model, "_stage_out_idx") and model.feature_hooks is None:  # EfficientNet and MobileNet
        stem = nn.Sequential()  # stands for the stem, whose map of stride 2 is stage 0
        return [(stem, 0 in model._stage_out_idx)] + [
            (block, stage in model._stage_out_idx) for stage, block in enumerate(model.blocks, 1)
        ]
    raise ValueError(f"its layers ({type(model).__name__}) cannot be entered in the middle")
