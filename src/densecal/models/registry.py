"""The architectures by name: a network is one file with one decorated function."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

# A builder takes (encoder, classes, **options) and returns a network that maps normalised images, whose sides
# are multiples of 32, to logits at their size and that holds its timm encoder at `encoder.model`. A network may have
# `criterion()` (what a training step does, where that is more than the method's loss of one head), `separate` (names
# of its parts that an optimizer of their own moves) and `encoder_loaded()` (called when the encoder got weights).
Builder = Callable[..., nn.Module]

_BUILDERS: dict[str, Builder] = {}


def architecture(name: str) -> Callable[[Builder], Builder]:
    """Register the decorated builder under a name."""

    def register(builder: Builder) -> Builder:
        if name in _BUILDERS:
            raise ValueError(f"architecture {name!r} is registered twice")
        _BUILDERS[name] = builder
        return builder

    return register


def architectures() -> list[str]:
    """List the names that ``build(arch=...)`` takes."""
    return sorted(_BUILDERS)


def build_network(arch: str, encoder: str, classes: int, options: dict[str, Any]) -> nn.Module:
    """Build the bare network of an architecture, without weights, normalisation and padding."""
    if arch not in _BUILDERS:
        raise ValueError(f"unknown architecture {arch!r}; {suggestion(arch, architectures())}")
    try:
        return _BUILDERS[arch](encoder, classes, **options)
    except (AssertionError, AttributeError, RuntimeError, TypeError, ValueError) as error:
        detail = str(error) or type(error).__name__
        with_options = f" with {options}" if options else ""
        raise ValueError(f"{arch} cannot be built on the encoder {encoder!r}{with_options}: {detail}") from error


def suggestion(name: str, known: Iterable[str]) -> str:
    """Say which known names are close to a misspelt one, or all of them if none is and they are few."""
    known = list(known)
    close = difflib.get_close_matches(name, known, n=5)
    if close:
        return f"did you mean {', '.join(close)}?"
    return f"expected one of {', '.join(known)}" if len(known) <= 20 else "no name is close to it"
