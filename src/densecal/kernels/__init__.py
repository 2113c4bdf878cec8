"""Faster layers and counting on CUDA: `accelerate` for networks, `counting_kernels` for meters."""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor, nn

from densecal.kernels.folding import Model, fold_normalisation
from densecal.kernels.graphs import preserve_state, replay

__all__ = ["accelerate", "counting_kernels", "rehearse"]


def accelerate(network: Model, *, training: bool, kernels: bool = True, graphs: bool = True) -> Model:
    """Make a network as fast as its device allows. Its weights, their names and its outputs stay the same.

    On CUDA, layers use Triton kernels for channels-last maps, each tested against PyTorch before its first use, and
    passes are replayed as CUDA graphs. On a CPU, a network that only predicts has its batch normalisations folded into
    its convolutions. On CUDA that would gain nothing, since a convolution adds its bias in a separate pass.

    Args:
        network: On its device; in evaluation mode unless it is to be trained.
        training: Whether the network is to be trained, or only predicts.
        kernels: Use the Triton kernels if Triton is installed.
        graphs: Replay passes as CUDA graphs. Then gradients must not be accumulated over several batches, and
            ``zero_grad`` must set them to None, as it does by default.

    Returns:
        The network itself, or a copy of it.
    """
    if next(network.parameters()).device.type != "cuda":
        return network if training else fold_normalisation(network)
    if kernels and importlib.util.find_spec("triton") is not None:
        _replace_layers(network, all_kinds=graphs or not training)
    if graphs:
        replay(network, training)
    return network


def rehearse(network: nn.Module, images: Tensor) -> None:
    """Run a training step and undo its effects, so that kernels are compiled before the first real step."""
    # training may fit into memory even if a rehearsal does not
    with contextlib.suppress(torch.OutOfMemoryError), preserve_state(network, images.device):
        network(images).sum().backward()
    network.zero_grad()


def counting_kernels(device: torch.device, agree: Callable[[ModuleType, torch.device], bool]) -> ModuleType | None:
    """Load `counting.py` if its kernels can be trusted.

    Args:
        device: Where pixels are counted.
        agree: Returns whether the kernels count the same as PyTorch.

    Returns:
        The module. None on other devices than CUDA, without Triton and, after a warning, if kernels fail or disagree.
    """
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return None
    try:
        from densecal.kernels import counting

        problem = "" if agree(counting, device) else "disagree with PyTorch"
    except Exception as error:  # Triton lacks a feature or a compiler; PyTorch still works
        problem = f"fail ({error})"
    if problem:
        warnings.warn(f"counting kernels {problem} on {device}: PyTorch's are used", stacklevel=3)
        return None
    return counting


def _replace_layers(network: nn.Module, all_kinds: bool) -> None:
    """Let the layers of a network use our kernels.

    Those of upsampling are always faster. The others are so small that launching them one by one in a training step
    costs as much as they save.
    """
    from densecal.kernels.upsampling import replace_upsampling

    replace_upsampling(network)
    if all_kinds:
        from densecal.kernels.depthwise import replace_depthwise
        from densecal.kernels.normalisation import replace_normalisation
        from densecal.kernels.small_convolutions import replace_small_convolutions

        replace_normalisation(network)
        replace_small_convolutions(network)
        replace_depthwise(network)
