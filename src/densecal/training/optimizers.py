"""The optimizers of a run: ``main``, and one for each part of the network that is trained separately."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from densecal.errors import InputError
from densecal.training.sections import OptimConfig

MAIN = "main"


def create_optimizers(network: nn.Module, optim: OptimConfig) -> dict[str, torch.optim.Optimizer]:
    """Create the optimizers by name, with a group of parameters for each learning rate.

    A group's ``factor`` is its learning rate divided by ``optim.lr``. The schedule is multiplied by it.

    Args:
        network: The bare network. Each part that it names in ``separate`` gets an optimizer of its own.
        optim: Settings. A parameter takes its rate from the longest key of ``optim.lrs`` that its name starts with.

    Raises:
        InputError: A key of ``optim.lrs`` names no part of the network.
    """
    separate: tuple[str, ...] = getattr(network, "separate", ())
    groups: dict[str, dict[float, list[nn.Parameter]]] = {owner: {} for owner in (MAIN, *separate)}
    names = [name for name, _ in network.named_parameters()]
    for part in optim.lrs:
        if not any(_belongs(name, part) for name in names):
            parts = ", ".join(name for name, _ in network.named_children())
            raise InputError(f"optim.lrs.{part}", "no part of the network", f"one of {parts}, or a part of these")
    for name, parameter in network.named_parameters():
        owner = next((part for part in separate if _belongs(name, part)), MAIN)
        longest = max((part for part in optim.lrs if _belongs(name, part)), key=len, default=None)
        rate = optim.lr if longest is None else optim.lrs[longest]
        groups[owner].setdefault(rate, []).append(parameter)
    return {owner: _create_optimizer(rates, optim) for owner, rates in groups.items()}


def _create_optimizer(rates: dict[float, list[nn.Parameter]], optim: OptimConfig) -> torch.optim.Optimizer:
    groups = [{"params": params, "lr": rate, "factor": rate / optim.lr} for rate, params in rates.items()]
    common: dict[str, Any] = {"lr": optim.lr, "weight_decay": optim.weight_decay, "fused": True}
    if optim.optimizer == "sgd":
        return torch.optim.SGD(groups, momentum=0.9, nesterov=True, **common)
    family = torch.optim.AdamW if optim.optimizer == "adamw" else torch.optim.Adam
    return family(groups, betas=optim.betas, **common)


def _belongs(name: str, part: str) -> bool:
    return name.startswith(f"{part}.")
