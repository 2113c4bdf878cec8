"""Optimizers by name: the parameters and learning rates of each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from densecal.errors import InputError
from densecal.training.optimizers import create_optimizers
from densecal.training.sections import OptimConfig


class Network(nn.Module):
    separate: tuple[str, ...] = ("prior",)

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Conv2d(2, 2, 1))
        self.head = nn.Conv2d(2, 1, 1)
        self.prior = nn.Linear(2, 1)


def parameters(optimizer: torch.optim.Optimizer) -> dict[float, set[int]]:
    return {group["lr"]: {id(p) for p in group["params"]} for group in optimizer.param_groups}


def ids(*modules: nn.Module) -> set[int]:
    return {id(p) for module in modules for p in module.parameters()}


def test_a_separate_part_has_its_own_optimizer() -> None:
    network = Network()
    optimizers = create_optimizers(network, OptimConfig(lr=1e-3, lrs={"prior": 1e-5}, weight_decay=0.1))
    assert list(optimizers) == ["main", "prior"]
    assert parameters(optimizers["main"]) == {1e-3: ids(network.encoder, network.head)}
    assert parameters(optimizers["prior"]) == {1e-5: ids(network.prior)}
    assert [group["factor"] for group in optimizers["prior"].param_groups] == [pytest.approx(0.01)]


def test_the_longest_name_gives_the_learning_rate() -> None:
    network = Network()
    optim = OptimConfig(lr=0.1, lrs={"encoder": 0.01, "encoder.0": 0.0})
    rates = parameters(create_optimizers(network, optim)["main"])
    assert rates == {0.1: ids(network.head), 0.01: ids(network.encoder[1]), 0.0: ids(network.encoder[0])}


def test_a_plain_network_has_one_group() -> None:
    network = nn.Conv2d(3, 1, 1)
    optimizers = create_optimizers(network, OptimConfig(lr=1e-3))
    assert list(optimizers) == ["main"]
    assert [group["factor"] for group in optimizers["main"].param_groups] == [1.0]
    assert parameters(optimizers["main"]) == {1e-3: ids(network)}


@pytest.mark.parametrize("part", ["encodr", "enc", "encoder.2"])
def test_an_unknown_part_is_named(part: str) -> None:
    with pytest.raises(InputError, match=rf"optim\.lrs\.{part}: no part of the network; expected one of encoder, head"):
        create_optimizers(Network(), OptimConfig(lrs={part: 0.1}))


def test_kinds_of_optimizers() -> None:
    network = nn.Conv2d(3, 1, 1)
    sgd = create_optimizers(network, OptimConfig(optimizer="sgd", weight_decay=1e-4))["main"]
    assert isinstance(sgd, torch.optim.SGD)
    assert (sgd.defaults["momentum"], sgd.defaults["nesterov"], sgd.defaults["weight_decay"]) == (0.9, True, 1e-4)
    adam = create_optimizers(network, OptimConfig(betas=(0.9, 0.99)))["main"]
    assert type(adam) is torch.optim.Adam
    assert tuple(adam.defaults["betas"]) == (0.9, 0.99)
    assert type(create_optimizers(network, OptimConfig(optimizer="adamw"))["main"]) is torch.optim.AdamW


def test_parts_with_a_learning_rate_of_zero_do_not_change() -> None:
    for kind in ("sgd", "adam", "adamw"):
        torch.manual_seed(0)
        network = Network()
        optim = OptimConfig(optimizer=kind, lr=0.1, lrs={"encoder.0": 0.0}, weight_decay=0.1)  # type: ignore[arg-type]
        before = [p.clone() for p in network.encoder.parameters()]
        optimizer = create_optimizers(network, optim)["main"]
        network.head(network.encoder(torch.rand(2, 3, 4, 4))).square().mean().backward()
        optimizer.step()
        moved = [not torch.equal(a, b) for a, b in zip(before, network.encoder.parameters(), strict=True)]
        assert moved == [False, False, True, True]
