"""Folding batch normalisation into convolutions: a network that only predicts need not normalise.

In evaluation mode a normalisation is one factor and one offset per channel, which the weights of the convolution before
it can absorb. The modules do not say which convolution that is, so an image is passed through the network and traced.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

Model = TypeVar("Model", bound=nn.Module)

_SIDE = 64
"""Side of the traced image in pixels."""
_TOLERANCE = 1e-6
_FROZEN = ("FrozenBatchNorm2d", "FrozenBatchNormAct2d")
"""Layers of timm and torchvision that use running statistics in training too."""


@torch.no_grad()
def fold_normalisation(model: Model) -> Model:
    """Copy a model without the normalisations that follow a convolution.

    Args:
        model: In evaluation mode; takes images (B, 3, H, W).

    Returns:
        The copy, or the model itself if it does not take a small image or the copy computes something else from it.
    """
    weights = next(model.parameters())
    # on the CPU in float64, because rounding on a GPU could hide the error of a wrong copy
    copied = copy.deepcopy(model).to("cpu", torch.float64)
    image = torch.rand(1, 3, _SIDE, _SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    try:
        pairs, output = _trace(copied, image)
        parents = {child: (parent, name) for parent in copied.modules() for name, child in parent.named_children()}
        for convolution, norm in pairs:
            convolution.weight, convolution.bias = fuse_conv_bn_weights(
                convolution.weight, convolution.bias,
                norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias,
            )  # fmt: skip
            parent, name = parents[norm]
            # timm's normalisation may contain its activation
            setattr(parent, name, nn.Sequential(norm.drop, norm.act) if hasattr(norm, "act") else nn.Identity())
        difference = (copied(image) - output).abs().max()
    # the model takes images of one size only, or does not return a tensor
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError):
        return model
    return copied.to(weights) if difference <= _TOLERANCE * output.abs().max() else model


def _trace(model: nn.Module, image: Tensor) -> tuple[list[tuple[Any, Any]], Tensor]:
    """Return pairs of a convolution and the normalisation of its output, each used once, and the model's output."""
    source: dict[int, nn.Module] = {}
    kept, pairs, uses = [], [], dict.fromkeys(model.modules(), 0)

    def record(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        uses[module] += 1
        before = source.get(id(inputs[0])) if inputs else None
        if isinstance(before, nn.Conv2d) and _is_foldable(module):
            pairs.append((before, module))
        if not isinstance(module, nn.Identity):  # whose output is its input
            source[id(output)] = module
        kept.append(output)  # an id is unique only as long as its object lives

    hooks = [
        module.register_forward_hook(record) for module in uses if _is_foldable(module) or not any(module.children())
    ]
    try:
        logits = model(image)
    finally:
        for hook in hooks:
            hook.remove()
    return [pair for pair in pairs if all(uses[module] == 1 for module in pair)], logits


def _is_foldable(module: nn.Module) -> bool:
    kind = type(module).__name__
    if kind in ("BatchNorm2d", "BatchNormAct2d"):  # PyTorch's and timm's
        return isinstance(module, nn.BatchNorm2d) and module.affine and module.track_running_stats
    return kind in _FROZEN
