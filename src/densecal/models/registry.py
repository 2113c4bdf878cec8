"""The architectures by name. An architecture is one file with one decorated function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from densecal.runtime.registry import Registry

# A builder takes (encoder, classes, **options) and returns a network. It maps normalised images, whose sides are
# multiples of 32, to logits of the same size, and has its timm encoder at `encoder.model`. A network may have
# `criterion()` (what a training step does, if that is more than the method's loss of one head), `separate` (names of
# its parts that get their own optimizer) and `encoder_loaded()` (called after weights were loaded into the encoder).
Builder = Callable[..., nn.Module]

ARCHITECTURES: Registry[Builder] = Registry("architecture")
architecture, architectures = ARCHITECTURES.register, ARCHITECTURES.names


def build_network(arch: str, encoder: str, classes: int, options: dict[str, Any]) -> nn.Module:
    """Build the bare network of an architecture, without pretrained weights, normalisation and padding."""
    builder = ARCHITECTURES.find(arch)
    try:
        return builder(encoder, classes, **options)
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        detail = str(error) or type(error).__name__
        with_options = f" with {options}" if options else ""
        raise ValueError(f"{arch} cannot be built on the encoder {encoder!r}{with_options}: {detail}") from error
