"""ICON, integrity cognition network (Zhuge et al., "Salient object detection via integrity learning")."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from densecal.errors import InputError
from densecal.models.encoders import FeaturePyramid
from densecal.models.layers import at_least_float32, conv_bn_relu, resize_like
from densecal.models.registry import architecture
from densecal.models.supervision import AllHeads, check_saliency, iou_loss

CHANNELS = 64
CAPSULES, POSE = 8, 4
"""Capsules in both layers, and the side of a capsule's pose matrix."""
ROUTING_ITERATIONS = 3
ROUTING_EPSILON = 1e-6


class AsymmetricConv(nn.Module):
    """BN(conv3x3) + BN(conv3x1) + BN(conv1x3)."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(in_channels, CHANNELS, (a, b), padding=(a // 2, b // 2), bias=False),
                nn.BatchNorm2d(CHANNELS),
            )
            for a, b in ((3, 3), (3, 1), (1, 3))
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C_in, H, W) to (B, 64, H, W)."""
        square, vertical, horizontal = (branch(x) for branch in self.branches)
        return square + vertical + horizontal  # type: ignore[no-any-return]


class DiverseAggregation(nn.Module):
    """DFA: a plain, an asymmetric and a dilated convolution of one map, joined."""

    def __init__(self, in_channels: int) -> None:
        super().__init__()
        self.plain = nn.Conv2d(in_channels, CHANNELS, 3, padding=1)
        self.asymmetric = AsymmetricConv(in_channels)
        self.dilated = nn.Sequential(
            nn.Conv2d(in_channels, CHANNELS, 3, padding=2, dilation=2), nn.BatchNorm2d(CHANNELS), nn.PReLU()
        )
        self.join = conv_bn_relu(3 * CHANNELS, CHANNELS, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C_in, H, W) to (B, 64, H, W)."""
        return self.join(torch.cat((self.plain(x), self.asymmetric(x), self.dilated(x)), dim=1))  # type: ignore[no-any-return]


class ChannelEnhancement(nn.Module):
    """ICE: u = cbr3(x, its neighbours), times a weight per channel computed from the norms of u's channels.

    The authors' weights were trained with x in place of the second input, a slip that they correct in a comment. Here
    it is the second input. x replaces a missing neighbour.
    """

    def __init__(self) -> None:
        super().__init__()
        self.cross = conv_bn_relu(3 * CHANNELS, CHANNELS)
        self.squeeze = nn.Conv2d(CHANNELS, CHANNELS // 8, 1)
        self.norm = nn.LayerNorm([CHANNELS // 8, 1, 1])
        self.widen = nn.Conv2d(CHANNELS // 8, CHANNELS, 1)

    def forward(self, x: Tensor, second: Tensor, third: Tensor | None = None) -> Tensor:
        """Keep the shape of x."""
        third = x if third is None else resize_like(third, x)
        u = self.cross(torch.cat((x, resize_like(second, x), third), dim=1))
        context = (u.square().sum(dim=(2, 3), keepdim=True) + 1e-5).sqrt()
        return u * self.widen(functional.relu(self.norm(self.squeeze(context))))  # type: ignore[no-any-return]


class CapsuleRouting(nn.Module):
    """Capsules of a 3x3 neighbourhood vote for the capsules of the next layer, which EM routing finds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(9 * CAPSULES, CAPSULES, POSE, POSE))
        self.beta_u = nn.Parameter(torch.zeros(CAPSULES))
        self.beta_a = nn.Parameter(torch.zeros(CAPSULES))
        nn.init.kaiming_uniform_(self.weight)

    def forward(self, activation: Tensor, pose: Tensor) -> Tensor:
        """Route with stride 2 and padding 1.

        Args:
            activation: (B, 8, H, W) in [0, 1].
            pose: (B, 8 * 16, H, W).

        Returns:
            The poses of the next layer, (B, 8 * 16, ceil(H / 2), ceil(W / 2)).
        """
        batch, _, height, width = activation.shape
        height, width = (height + 1) // 2, (width + 1) // 2
        a = neighbourhoods(activation, height, width).flatten(1, 2)
        M = neighbourhoods(pose, height, width).view(batch, 9 * CAPSULES, POSE, POSE, height * width)
        votes = torch.einsum("bipql,ijqr->bijprl", M, self.weight).flatten(3, 4)
        poses = em_routing(at_least_float32(votes), at_least_float32(a), self.beta_u, self.beta_a)
        return poses.reshape(batch, -1, height, width)


class Verification(nn.Module):
    """PWV: capsules of the three deep maps tell which parts belong to a whole, and refine the maps."""

    def __init__(self) -> None:
        super().__init__()
        self.join = conv_bn_relu(3 * CHANNELS, CHANNELS)
        self.activation = conv5_bn(CAPSULES)
        self.pose = conv5_bn(CAPSULES * POSE * POSE)
        self.routing = CapsuleRouting()
        self.norm = nn.BatchNorm2d(CAPSULES * POSE * POSE)
        self.whole = conv_bn_relu(CAPSULES * POSE * POSE, CHANNELS)
        self.refine = nn.ModuleList(conv_bn_relu(2 * CHANNELS, CHANNELS) for _ in range(3))
        self.gate2, self.gate3 = gate(), gate()

    def forward(self, x1: Tensor, x2: Tensor, x3: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return o1, o2, o3 at the size of x2, and the poses."""
        if min(x2.shape[-2:]) < 3:
            raise InputError("icon", "images of 32 pixels or less", "at least 33, for capsules of 5x5 at stride 16")
        x1, x3 = resize_like(x1, x2), resize_like(x3, x2)
        joined = self.join(torch.cat((x1, x2, x3), dim=1))
        pose = self.routing(self.activation(joined).sigmoid(), self.pose(joined))
        pose = self.whole(self.norm(pose))
        wide = resize_like(pose, x2)
        o1, o2, o3 = (refine(torch.cat((x, wide), dim=1)) for refine, x in zip(self.refine, (x1, x2, x3), strict=True))
        o2 = self.gate2(o2 * o1) + o2
        o3 = self.gate3(o3 * o2) + o3
        return o1, o2, o3, pose


class ICON(nn.Module):
    """ICON on any encoder with features of strides 4, 8, 16 and 32.

    The parts of the authors' class that are never used are left out: a third gate and a 1-channel convolution in
    each of the two enhancements. With ResNet50 33,047,513 parameters remain.

    Args:
        encoder: timm name.
        region_weight: Weight of the IoU loss added to each head's cross entropy.
    """

    def __init__(self, encoder: str, region_weight: float = 1.0) -> None:
        super().__init__()
        self.region_weight = region_weight
        self.encoder = FeaturePyramid(encoder)
        self.aggregate = nn.ModuleList(DiverseAggregation(width) for width in self.encoder.channels)
        self.enhance_deep, self.enhance_fine = ChannelEnhancement(), ChannelEnhancement()
        self.verify = Verification()
        self.gate = gate()
        self.side_heads = nn.ModuleList(nn.Conv2d(CHANNELS, 1, 3, padding=1) for _ in range(4))
        self.head = nn.Conv2d(CHANNELS, 1, 3, padding=1)
        for name, module in self.named_modules():
            if isinstance(module, nn.Conv2d) and not name.startswith("encoder."):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, images: Tensor, heads: bool = False) -> Tensor | tuple[Tensor, ...]:
        """Map normalised images to the logits of the finest map, or of all heads: x4, o1, o2, o3, pose."""
        features = self.encoder(images)
        x4, x3, x2, x1 = (dfa(feature) for dfa, feature in zip(self.aggregate, features, strict=True))
        x1 = self.enhance_deep(x1, x2)
        x2 = self.enhance_deep(x2, x1, x3)
        x3 = self.enhance_fine(x3, x2, x4)
        x4 = self.enhance_fine(x4, x3)
        o1, o2, o3, pose = self.verify(x1, x2, x3)
        o3 = resize_like(o3, x4)
        x4 = self.gate(x4 * o3) + x4
        logits = resize_like(self.head(x4), images)
        if not heads:
            return logits
        sides = zip(self.side_heads, (o1, o2, o3, pose), strict=True)
        return logits, *(resize_like(head(x), images) for head, x in sides)

    def criterion(self) -> AllHeads:
        """Return what a training step does: cross entropy and IoU loss of every head."""
        return AllHeads(iou_loss, self.region_weight)


def em_routing(votes: Tensor, a: Tensor, beta_u: Tensor, beta_a: Tensor) -> Tensor:
    """Find the capsules that votes agree on by EM routing (Hinton et al. 2018, "Matrix capsules with EM routing").

    There are three iterations. The M-step fits a Gaussian (mu_j, sigma_j) to the votes for each capsule j and gives it
    an activation a_j = sigmoid(lambda * (beta_a - cost)). The E-step updates the assignment R_ij of each voting
    capsule. lambda = 0.01 * (1 - 0.95^(t+1)) rises with the iteration t.

    Args:
        votes: V_ij, (B, I, J, 16, L), for L positions.
        a: Activations of the voting capsules, (B, I, L).
        beta_u: Cost of describing a capsule's data, (J,).
        beta_a: Cost of activating a capsule, (J,).

    Returns:
        Poses mu, (B, J, 16, L).
    """
    beta_u, beta_a = beta_u[:, None, None], beta_a[:, None]
    R = torch.full_like(votes[:, :, :, 0], 1 / votes.shape[2])
    for t in range(ROUTING_ITERATIONS):
        r = R * a[:, :, None]
        total = r.sum(dim=1)
        share = (r / (total[:, None] + ROUTING_EPSILON))[:, :, :, None]
        mu = (share * votes).sum(dim=1)
        if t + 1 < ROUTING_ITERATIONS:
            square = (votes - mu[:, None]).square()
            variance = (share * square).sum(dim=1) + ROUTING_EPSILON
            log_sigma = 0.5 * variance.log()
            cost = ((beta_u + log_sigma) * total[:, :, None]).sum(dim=2)
            log_a = functional.logsigmoid(0.01 * (1 - 0.95 ** (t + 1)) * (beta_a - cost))
            # without 16/2 log(2 pi), which all capsules share
            log_p = -(0.5 * square / variance[:, None] + log_sigma[:, None]).sum(dim=3)
            R = (log_a[:, None] + log_p).softmax(dim=2)
    return mu


def neighbourhoods(x: Tensor, height: int, width: int) -> Tensor:
    """Gather the 3x3 neighbourhoods, with stride 2 and zeros beyond the edge: (B, C, H, W) to (B, 9, C, L)."""
    padded = functional.pad(x, (1, 1, 1, 1))
    shifted = [padded[:, :, i : i + 2 * height - 1 : 2, j : j + 2 * width - 1 : 2] for i in range(3) for j in range(3)]
    return torch.stack(shifted, dim=1).flatten(3)


def conv5_bn(channels: int) -> nn.Sequential:
    """Build a 5x5 convolution with a padding of 1, which removes a pixel at every side, and batch norm."""
    return nn.Sequential(nn.Conv2d(CHANNELS, channels, 5, padding=1, bias=False), nn.BatchNorm2d(channels))


def gate() -> nn.Sequential:
    """Build G: 1x1 and 3x3 convolutions, batch norm and ReLU."""
    return nn.Sequential(nn.Conv2d(CHANNELS, CHANNELS, 1), *conv_bn_relu(CHANNELS, CHANNELS, bias=True))


@architecture("icon")
def icon(encoder: str, classes: int, region_weight: float = 1.0) -> nn.Module:
    """Build ICON."""
    check_saliency(classes, region_weight)
    return ICON(encoder, region_weight)
