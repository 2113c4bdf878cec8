"""Networks with folded batch normalisations compute the same as before."""

import pytest
import torch
from torch import nn

from densecal.kernels.folding import fold_normalisation
from densecal.models import build


def trained(network):
    """Give the normalisations of a network random weights and statistics."""
    torch.manual_seed(0)
    for module in network.modules():
        if "BatchNorm" in type(module).__name__:
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return network.eval()


def normalisations(network):
    return sum("BatchNorm" in type(module).__name__ for module in network.modules())


@torch.no_grad()
def assert_same(network, other, size=(2, 3, 96, 64)):
    images = torch.rand(size)
    torch.testing.assert_close(other.double()(images.double()), network.double()(images.double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arch", "encoder"),
    [
        ("unet", "tf_efficientnet_lite0"),  # normalisation with its activation
        ("unet", "resnet18"),  # residual branches
        ("paper-unet", "vgg11_bn"),
        ("edn", "resnet18"),  # whose encoder has frozen normalisations
        ("deeplabv3plus", "mobilenetv3_small_050"),
    ],
)
def test_networks_lose_their_normalisations_and_nothing_else(arch, encoder):
    network = trained(build(arch, encoder))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    other = fold_normalisation(network)
    assert normalisations(other) == 0 < normalisations(network)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert_same(network, other)


class Reused(nn.Module):
    """Cases that must not be folded, such as a convolution, a normalisation or an output that is used twice."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.norm, self.other = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        if self.kind == "convolution":
            return self.norm(self.first(x)) + self.other(self.first(2 * x))
        if self.kind == "normalisation":
            return self.norm(self.first(x)) + self.norm(self.second(x))
        if self.kind == "dropout":
            return self.norm(self.drop(self.first(x)))
        y = self.first(x)
        return self.norm(y) + 1e-4 * y


@pytest.mark.parametrize("kind", ["convolution", "normalisation", "output", "dropout"])
def test_layers_that_are_used_twice_are_not_folded(kind):
    network = trained(Reused(kind))
    other = fold_normalisation(network)
    assert normalisations(other) == normalisations(network)
    assert_same(network, other)


class Pair(nn.Sequential):
    def forward(self, x):
        return super().forward(x), x


def test_a_network_with_a_fixed_input_size_or_several_outputs_is_not_folded():
    parts = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)
    for network in (nn.Sequential(*parts, nn.Flatten(2), nn.Linear(96 * 64, 4)), Pair(*parts)):
        assert fold_normalisation(trained(network)) is network
