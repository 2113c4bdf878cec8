"""The U-Net of "Model Calibration in Dense Classification with Adaptive Label Perturbation" (ICCV 2023)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from densecal.models.encoders import FeaturePyramid
from densecal.models.registry import architecture

DILATIONS = (3, 6, 12, 18)


class Lateral(nn.Module):
    """Sum of four dilated 3x3 convolutions that maps encoder features to the decoder's width."""

    def __init__(self, in_channels: int, channels: int, dilations: Sequence[int] = DILATIONS) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(in_channels, channels, 3, padding=dilation, dilation=dilation) for dilation in dilations
        )
        for conv in self.convs:
            assert isinstance(conv, nn.Conv2d)
            nn.init.normal_(conv.weight, std=0.01)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C_in, H, W) to (B, channels, H, W)."""
        a, b, c, d = (conv(x) for conv in self.convs)
        return a + b + c + d  # type: ignore[no-any-return]


class ResidualConvUnit(nn.Module):
    """RCU(x) = conv3(relu(conv3(relu(x)))) + relu(x).

    The skip is the rectified input, as in the authors' network, where an in-place ReLU overwrites x. The textbook unit
    adds x itself.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        x = functional.relu(x)
        return self.conv2(functional.relu(self.conv1(x))) + x  # type: ignore[no-any-return]


class Fusion(nn.Module):
    """F(x, skip) = up x2 of RCU2(x + RCU1(skip))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.rcu1 = ResidualConvUnit(channels)
        self.rcu2 = ResidualConvUnit(channels)
        self.upsample = upsample(align_corners=True)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        """Fuse two maps of one size into one of twice the size."""
        return self.upsample(self.rcu2(x + self.rcu1(skip)))  # type: ignore[no-any-return]


class PaperUNet(nn.Module):
    """The paper's U-Net on any encoder with features of strides 4, 8, 16 and 32.

    The parts of the authors' class that are never used are left out: a second copy of the encoder's layer3 and
    layer4, and RCU1 of the deepest fusion, which has no skip. With ResNet50 and 256 channels 67,494,657 parameters
    remain. The paper also names VGG16 and Swin without saying how they are attached. Here only the input widths of
    the laterals change.

    Args:
        encoder: timm name.
        classes: Channels of the logits.
        channels: Width of the decoder; 256 in the paper, 64 for small experiments.
    """

    def __init__(self, encoder: str, classes: int, channels: int = 256) -> None:
        super().__init__()
        if channels < 2:
            raise ValueError(f"channels is {channels}; expected at least 2")
        self.encoder = FeaturePyramid(encoder)
        self.laterals = nn.ModuleList(Lateral(width, channels) for width in self.encoder.channels)
        self.deepest = ResidualConvUnit(channels)
        self.upsample_deepest = upsample(align_corners=True)
        self.fusions = nn.ModuleList(Fusion(channels) for _ in self.encoder.channels[:-1])
        self.head1 = nn.Conv2d(channels, channels // 2, 3, padding=1)
        self.upsample_head = upsample(align_corners=False)
        self.head2 = nn.Conv2d(channels // 2, 32, 3, padding=1)
        self.head3 = nn.Conv2d(32, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Map normalised images, sides multiples of 32, to logits of their size."""
        features = self.encoder(images)
        skips = [lateral(feature) for lateral, feature in zip(self.laterals, features, strict=True)]
        x = self.upsample_deepest(self.deepest(skips[-1]))
        for fusion, skip in zip(self.fusions, reversed(skips[:-1]), strict=True):
            x = fusion(x, skip)
        x = self.upsample_head(self.head1(x))
        return self.head3(functional.relu(self.head2(x)))  # type: ignore[no-any-return]


def upsample(align_corners: bool) -> nn.Upsample:
    """Build a layer that doubles the size. The authors align corners in the decoder but not in the head."""
    return nn.Upsample(scale_factor=2, mode="bilinear", align_corners=align_corners)


@architecture("paper-unet")
def paper_unet(encoder: str, classes: int, channels: int = 256) -> nn.Module:
    """Build the paper's U-Net."""
    return PaperUNet(encoder, classes, channels)
