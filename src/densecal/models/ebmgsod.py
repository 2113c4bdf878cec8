"""EBMGSOD: saliency with an energy-based latent space (Zhang et al., NeurIPS 2021).

A generator maps an image and a latent z to a map. The prior of the latent, exp(-E(z) - |z|^2 / 2), is learnt too. The
prior and, in training, the posterior of z given the mask are sampled by Langevin dynamics.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from densecal import rng
from densecal.methods import Method
from densecal.methods.penalties import without_void
from densecal.models.encoders import EncoderTail, FeaturePyramid
from densecal.models.layers import at_least_float32
from densecal.models.paper_unet import Lateral
from densecal.models.registry import architecture
from densecal.models.supervision import check_saliency, image_mean, iou_loss, probabilities

CHANNELS = LATENT = 32
HIDDEN = 60
STEPS = 5
PRIOR_STEP, POSTERIOR_STEP = 0.4, 0.1
LIKELIHOOD_SIGMA = 0.3
DECODER_DILATIONS = (6, 12, 18, 24)
ATTENTION_SIDE, ATTENTION_SPAN = 31, 4.0
BOUNDARY_SIDE = 31


class EnergyPrior(nn.Module):
    """E(z): an MLP 32-60-60-1 with GELU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1, self.layer2 = nn.Linear(LATENT, HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.layer3 = nn.Linear(HIDDEN, 1)

    def forward(self, z: Tensor) -> Tensor:
        """Map latents (B, 32) to energies (B,)."""
        return self.layer3(functional.gelu(self.layer2(functional.gelu(self.layer1(z))))).squeeze(1)  # type: ignore[no-any-return]

    def gradient(self, z: Tensor) -> Tensor:
        """Return dE/dz (B, 32), written out so that sampling needs no autograd and can be exported."""
        h1 = self.layer1(z)
        h2 = self.layer2(functional.gelu(h1))
        by_h2 = self.layer3.weight * gelu_slope(h2)
        return (by_h2 @ self.layer2.weight * gelu_slope(h1)) @ self.layer1.weight


class ChannelAttention(nn.Module):
    """RCAB: x + CA(conv3(relu(conv3(x)))), where CA weights channels by a bottleneck of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)
        self.squeeze = nn.Conv2d(channels, channels // 16, 1)
        self.widen = nn.Conv2d(channels // 16, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the shape."""
        y = self.conv2(functional.relu(self.conv1(x)))
        weight = self.widen(functional.relu(self.squeeze(y.mean(dim=(2, 3), keepdim=True)))).sigmoid()
        return x + y * weight  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """Decodes maps f1..f4 of strides 4 to 32 into logits of the images' size."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.ModuleList(ChannelAttention(n * CHANNELS) for n in (2, 3, 4))
        self.reduce = nn.ModuleList(Lateral(n * CHANNELS, CHANNELS, DECODER_DILATIONS) for n in (2, 3, 4))
        self.head = Lateral(CHANNELS, 1, DECODER_DILATIONS)

    def forward(self, f1: Tensor, f2: Tensor, f3: Tensor, f4: Tensor) -> Tensor:
        """Return logits (B, 1, H, W)."""
        a4 = upsample(f4, 2)
        a43 = upsample(self._fuse(0, a4, f3), 2)
        a432 = upsample(self._fuse(1, upsample(a4, 2), a43, f2), 2)
        a = self._fuse(2, upsample(a4, 4), upsample(a43, 2), a432, f1)
        return upsample(self.head(a), 4)

    def _fuse(self, level: int, *maps: Tensor) -> Tensor:
        return self.reduce[level](self.attend[level](torch.cat(maps, dim=1)))  # type: ignore[no-any-return]


class HolisticAttention(nn.Module):
    """Multiplies features by an attention map that is widened by a learnt Gaussian kernel."""

    def __init__(self) -> None:
        super().__init__()
        x = torch.linspace(-ATTENTION_SPAN, ATTENTION_SPAN, ATTENTION_SIDE)
        bell = torch.exp(-0.5 * x.square())
        kernel = bell[:, None] * bell
        self.kernel = nn.Parameter((kernel / kernel.sum())[None, None])

    def forward(self, attention: Tensor, features: Tensor) -> Tensor:
        """Keep the shape of the features; attention is (B, 1, H, W) in [0, 1]."""
        wide = functional.conv2d(attention, self.kernel, padding=ATTENTION_SIDE // 2)
        low, high = wide.amin(dim=(2, 3), keepdim=True), wide.amax(dim=(2, 3), keepdim=True)
        return features * torch.maximum((wide - low) / (high - low + 1e-8), attention)


class EBMGSOD(nn.Module):
    """EBMGSOD on any encoder whose layers can be entered after its map of stride 8.

    A first decoder makes an initial map from the features and z. The initial map is used as attention on the features
    of stride 8, which then pass through a second copy of the encoder's deeper layers. A second decoder makes the
    refined map from those.

    For testing, z is drawn by five Langevin steps of the prior with fixed noise, so that a map is a function of the
    image alone. The probabilities of the refined maps of several z are averaged.

    Args:
        encoder: timm name.
        region_weight: Weight of the IoU loss added to each map's cross entropy.
        samples: Number of latents whose maps are averaged for testing.
    """

    separate = ("prior",)
    """Parts that have their own optimizer."""
    test_noise: Tensor

    def __init__(self, encoder: str, region_weight: float = 1.0, samples: int = 5) -> None:
        super().__init__()
        self.region_weight = region_weight
        self.encoder = FeaturePyramid(encoder)
        self.tail = EncoderTail(self.encoder, level=1)
        widths = self.encoder.channels
        self.laterals = nn.ModuleList(Lateral(width, CHANNELS) for width in widths)
        self.refined_laterals = nn.ModuleList(Lateral(width, CHANNELS) for width in widths[1:])
        self.mix_latent = nn.Conv2d(CHANNELS + LATENT, CHANNELS, 1)
        self.decoder, self.refined_decoder = Decoder(), Decoder()
        self.attention = HolisticAttention()
        self.prior = EnergyPrior()
        normals = rng.normal(0, 0, torch.arange(samples), rng.Stream.EBM_PREDICTION, (STEPS + 1) * LATENT)
        self.register_buffer("test_noise", normals.view(samples, STEPS + 1, LATENT), persistent=False)

    def encoder_loaded(self) -> None:
        """Copy the encoder's weights to the second copy of its deeper layers."""
        self.tail.copy_weights(self.encoder)

    def criterion(self) -> StructureCriterion:
        """Return what a training step does: losses of both maps at a posterior sample, and of the prior."""
        return StructureCriterion(self.region_weight)

    def forward(
        self, images: Tensor, masks: Tensor | None = None, noise: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor, Tensor, Tensor]:
        """Compute logits of normalised images.

        Args:
            images: (B, 3, H, W), sides multiples of 32.
            masks: In training, the clean masks (B, 1, h, w), smaller than the images if these were padded.
            noise: In training, normal noise (B, 2, 6, 32): for posterior and prior, the start and five steps.

        Returns:
            The logits of the averaged refined map; in training the logits of the initial and refined maps at a
            posterior sample z+, E(z+), and E(z-) of a prior sample z-.
        """
        features = self.encoder(images)
        f = [lateral(feature) for lateral, feature in zip(self.laterals, features, strict=True)]
        if masks is None or noise is None:
            latents = self.sample_prior(self.test_noise)
            maps = [self.maps(features[1], f, z.expand(images.shape[0], -1))[1] for z in latents]
            return mean_probability(torch.stack(maps))
        # mixed precision converts inputs to half precision, in which Langevin steps would be lost
        masks, noise = at_least_float32(masks), at_least_float32(noise)
        positive = self.sample_posterior([x.detach() for x in f], masks, noise[:, 0])
        initial, refined = self.maps(features[1], f, positive)
        with torch.autocast(images.device.type, enabled=False):
            with torch.no_grad():
                negative = self.sample_prior(noise[:, 1])
            return initial, refined, self.prior(positive), self.prior(negative)

    def maps(self, c3: Tensor, f: list[Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the initial and the refined map, from C3, the laterals f1..f4 and latents (B, 32)."""
        initial = self.initial_map(f, z)
        attention = functional.interpolate(initial, size=c3.shape[-2:], mode="bilinear", align_corners=True).sigmoid()
        attended = self.attention(attention, c3)
        again = [attended, *self.tail(attended)]
        g = [lateral(feature) for lateral, feature in zip(self.refined_laterals, again, strict=True)]
        return initial, self.refined_decoder(f[0], *g)

    def initial_map(self, f: list[Tensor], z: Tensor) -> Tensor:
        """Return the first decoder's map."""
        tiled = z[:, :, None, None].expand(-1, -1, *f[3].shape[-2:])
        f4 = self.mix_latent(torch.cat((f[3], tiled), dim=1))
        return self.decoder(f[0], f[1], f[2], f4)  # type: ignore[no-any-return]

    def sample_prior(self, noise: Tensor) -> Tensor:
        """Draw z- from exp(-E(z) - |z|^2 / 2) by Langevin steps. noise (B, 6, 32) is the start, then each step's."""
        return langevin(noise, PRIOR_STEP, self.prior.gradient)

    @torch.no_grad()
    def sample_posterior(self, f: list[Tensor], masks: Tensor, noise: Tensor) -> Tensor:
        """Draw z+ in the same way, given the masks that the initial map should equal."""

        def gradient(z: Tensor) -> Tensor:
            # autocast would cache the prior's weights, cast without a gradient, and use them in its loss
            with torch.autocast(z.device.type, enabled=False):
                by_prior = self.prior.gradient(z)
            by_likelihood: Tensor = self.likelihood_gradient(f, masks, z)
            return by_prior + by_likelihood

        return langevin(noise, POSTERIOR_STEP, gradient)

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def likelihood_gradient(self, f: list[Tensor], masks: Tensor, z: Tensor) -> Tensor:
        """Return the gradient in z of MSE(sigmoid(initial map), masks) / (2 * 0.3^2), averaged over the batch too."""
        height, width = masks.shape[-2:]
        with torch.enable_grad():
            z = z.detach().requires_grad_()
            p = at_least_float32(self.initial_map(f, z)[..., :height, :width]).sigmoid()
            misfit = functional.mse_loss(p, masks) / (2 * LIKELIHOOD_SIGMA**2)
            return torch.autograd.grad(misfit, z)[0]


class StructureCriterion:
    """Boundary-weighted losses of both maps, and mean E(z+) - mean E(z-) for the prior.

    w = 1 + 5 |mean of y over 31x31 - y|. L = sum over the maps of the method's loss, weighted by w within each
    image, + region_weight * weighted IoU loss. w, IoU and the latent's posterior come from the clean mask.

    Args:
        region_weight: Weight of the IoU losses; 0 leaves them out.
    """

    def __init__(self, region_weight: float) -> None:
        self.region_weight = region_weight

    def step(
        self,
        model: nn.Module,
        images: Tensor,
        masks: Tensor,
        targets: Any,
        method: Method,
        weight: Tensor | None,
        index: Tensor,
    ) -> tuple[dict[str, Tensor], Tensor]:
        """Return losses by the name of their optimizer, and the logits of the refined map."""
        normals = rng.normal(method.seed, method.epoch, index, rng.Stream.EBM_TRAINING, 2 * (STEPS + 1) * LATENT)
        noise = normals.view(-1, 2, STEPS + 1, LATENT)
        y = without_void(masks, method.ignore_index).float()
        initial, refined, positive, negative = model(images, masks=y, noise=noise)
        w = boundary_weight(y)
        shares = w / w.sum(dim=(2, 3), keepdim=True)
        if weight is not None:
            shares = shares * weight.view(-1, 1, 1, 1)
        terms = []
        for z in (initial, refined):
            terms.append(method.loss(z, targets, shares))
            if self.region_weight:
                p, _ = probabilities(z, masks, method.ignore_index)
                terms.append(self.region_weight * iou_loss(p, y, weight, w))
        return {"main": torch.stack(terms).sum(), "prior": image_mean(positive - negative, weight)}, refined


def langevin(noise: Tensor, s: float, gradient: Callable[[Tensor], Tensor]) -> Tensor:
    """Take steps z <- z - s^2 / 2 * (gradient(z) + z) + s * noise.

    Args:
        noise: (B, 1 + steps, 32): the start, then the noise of each step.
        s: Step size.
        gradient: Gradient of the energy without |z|^2 / 2.
    """
    z, *steps = noise.unbind(dim=1)
    for epsilon in steps:
        z = z - s**2 / 2 * (gradient(z) + z) + s * epsilon
    return z


def gelu_slope(x: Tensor) -> Tensor:
    """Return the derivative of GELU: Phi(x) + x phi(x)."""
    return 0.5 * (1 + torch.erf(x / math.sqrt(2))) + x * torch.exp(-0.5 * x.square()) / math.sqrt(2 * math.pi)


def boundary_weight(y: Tensor) -> Tensor:
    """Return w = 1 + 5 |mean of y over 31x31 - y|, where the mask is 0 beyond its edge."""
    mean = functional.avg_pool2d(y, BOUNDARY_SIDE, stride=1, padding=BOUNDARY_SIDE // 2)
    return 1 + 5 * (mean - y).abs()


def mean_probability(logits: Tensor) -> Tensor:
    """Return the logits of the mean over the first dimension of sigmoid(logits)."""
    return functional.logsigmoid(logits).logsumexp(dim=0) - functional.logsigmoid(-logits).logsumexp(dim=0)


def upsample(x: Tensor, factor: int) -> Tensor:
    """Enlarge a map bilinearly with aligned corners."""
    return functional.interpolate(x, scale_factor=float(factor), mode="bilinear", align_corners=True)


@architecture("ebmgsod")
def ebmgsod(encoder: str, classes: int, region_weight: float = 1.0, samples: int = 5) -> nn.Module:
    """Build EBMGSOD."""
    check_saliency(classes, region_weight)
    if samples < 1:
        raise ValueError(f"samples is {samples}; expected at least 1")
    return EBMGSOD(encoder, region_weight, samples)
