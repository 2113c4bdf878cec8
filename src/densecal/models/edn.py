"""EDN, extremely-downsampled network (Wu et al., "EDN: Salient object detection via extremely-downsampled network")."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from densecal.models.encoders import FeaturePyramid, feature_strides, import_extra
from densecal.models.layers import conv_bn_relu, resize_like
from densecal.models.registry import architecture
from densecal.models.supervision import AllHeads, check_saliency, dice_loss

EXTREME_PLANES, EXTREME_CHANNELS = 256, 1024


class Level(NamedTuple):
    """The decoder at one resolution.

    Attributes:
        channels: Width d of its maps.
        width: Width w of a receptive convolution's four branches.
        dilations: Rates of the branches.
    """

    channels: int
    width: int
    dilations: tuple[int, int, int, int]


LEVELS = (
    Level(32, 16, (1, 2, 4, 8)),
    Level(64, 32, (1, 2, 4, 8)),
    Level(256, 96, (1, 2, 4, 8)),
    Level(512, 192, (1, 2, 3, 4)),
    Level(512, 192, (1, 2, 3, 4)),
    Level(128, 48, (1, 1, 1, 1)),
    Level(128, 48, (1, 1, 1, 1)),
)


class ReceptiveConv(nn.Module):
    """A residual block of four branches, each of which sees the sum of its own input and the branch before it.

    s_1 = cbr3(x_1); s_j = cbr3(s_(j-1) + x_j); out = relu(x + BN(conv1(s_1 .. s_4))).
    """

    def __init__(self, level: Level) -> None:
        super().__init__()
        d, w = level.channels, level.width
        self.split = conv_bn_relu(d, 4 * w, 1)
        self.branches = nn.ModuleList(conv_bn_relu(w, w, dilation=r) for r in level.dilations)
        self.join = nn.Sequential(nn.Conv2d(4 * w, d, 1, bias=False), nn.BatchNorm2d(d))

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        parts = self.split(x).chunk(4, dim=1)
        s = [self.branches[0](parts[0])]
        for branch, part in zip(self.branches[1:], parts[1:], strict=True):
            s.append(branch(s[-1] + part))
        return functional.relu(self.join(torch.cat(s, dim=1)) + x)


class EDN(nn.Module):
    """EDN on any encoder with features of strides 4, 8, 16 and 32.

    Two more stages bring the encoder's last map to strides 64 and 128. Both are multiplied by a gate pooled from the
    second. The encoder's batch norms stay as they were trained: weights and statistics are buffers. (The authors drop
    their eps. Here it is kept, since without it encoders with a large one, such as EfficientNet, have other features.)
    An encoder without features of stride 2, such as Swin, has no level 1, and level 2's map is used for testing.

    Args:
        encoder: timm name.
        region_weight: Weight of the Dice loss added to each head's cross entropy.
    """

    def __init__(self, encoder: str, region_weight: float = 1.0) -> None:
        super().__init__()
        strides = (2, 4, 8, 16, 32) if 2 in feature_strides(encoder) else (4, 8, 16, 32)
        self.encoder = FeaturePyramid(encoder, strides)
        self.encoder.model = import_extra("timm.layers").freeze_batch_norm_2d(self.encoder.model)
        self.region_weight = region_weight
        self.extreme1 = extreme_stage(self.encoder.channels[-1])
        self.extreme2 = extreme_stage(EXTREME_CHANNELS)
        widths = [*self.encoder.channels, EXTREME_CHANNELS, EXTREME_CHANNELS]
        levels = LEVELS[-len(widths) :]
        # there is no level below the deepest one, so its lateral has the full width
        shares = [level.channels // 2 for level in levels[:-1]]
        self.tops = nn.ModuleList(
            conv_bn_relu(below.channels, d, 1, bias=True) for below, d in zip(levels[1:], shares, strict=True)
        )
        self.laterals = nn.ModuleList(
            conv_bn_relu(width, d, 1, bias=True)
            for width, d in zip(widths, [*shares, levels[-1].channels], strict=True)
        )
        self.fusions = nn.ModuleList(nn.Sequential(ReceptiveConv(level), ReceptiveConv(level)) for level in levels)
        self.side_heads = nn.ModuleList(nn.Conv2d(level.channels, 1, 1) for level in levels[1 : len(strides)])
        self.head = nn.Conv2d(levels[0].channels, 1, 1)

    def forward(self, images: Tensor, heads: bool = False) -> Tensor | tuple[Tensor, ...]:
        """Map normalised images to the logits of the finest map, or of all heads, finest first."""
        features = self.encoder(images)
        e6 = self.extreme1(features[-1])
        e7 = self.extreme2(e6)
        gate = e7.mean(dim=(2, 3), keepdim=True).sigmoid()
        features += [e6 * gate, e7 * gate]
        x = self.fusions[-1](self.laterals[-1](features[-1]))
        decoded: list[Tensor] = []
        for i in reversed(range(len(features) - 1)):
            top = resize_like(self.tops[i](x), features[i])
            x = self.fusions[i](torch.cat((top, self.laterals[i](features[i])), dim=1))
            decoded.insert(0, x)
        logits = resize_like(self.head(x), images)
        if not heads:
            return logits
        sides = zip(self.side_heads, decoded[1:], strict=False)
        return logits, *(resize_like(head(x), images) for head, x in sides)

    def criterion(self) -> AllHeads:
        """Return what a training step does: cross entropy and Dice loss of every head."""
        return AllHeads(dice_loss, self.region_weight)


def extreme_stage(in_channels: int) -> nn.Sequential:
    """Build two of ResNet's bottlenecks, the first of stride 2."""
    bottleneck = import_extra("timm.models.resnet").Bottleneck
    shortcut = nn.Sequential(
        nn.Conv2d(in_channels, EXTREME_CHANNELS, 1, stride=2, bias=False), nn.BatchNorm2d(EXTREME_CHANNELS)
    )
    first = bottleneck(in_channels, EXTREME_PLANES, stride=2, downsample=shortcut)
    return nn.Sequential(first, bottleneck(EXTREME_CHANNELS, EXTREME_PLANES))


@architecture("edn")
def edn(encoder: str, classes: int, region_weight: float = 1.0) -> nn.Module:
    """Build EDN."""
    check_saliency(classes, region_weight)
    return EDN(encoder, region_weight)
