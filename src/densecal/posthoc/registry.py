"""The calibrators by name: a calibrator is one file with one decorated class."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from densecal.runtime.registry import Registry

if TYPE_CHECKING:
    from densecal.posthoc.base import Calibrator

C = TypeVar("C", bound="type[Calibrator]")

NETWORKS = {
    "local-temperature": "densecal.posthoc.networks.local_temperature",
    "selective": "densecal.posthoc.networks.selective",
}
"""Calibrators that are networks. They calibrate one logit or K, need PyTorch, and are imported when requested."""

CALIBRATORS: Registry[type[Calibrator]] = Registry("calibrator", NETWORKS)
names, find, options = CALIBRATORS.names, CALIBRATORS.find, CALIBRATORS.options


def register(name: str) -> Callable[[C], C]:
    """Make a calibrator available to `create` and to files under a name: `@register("mine")` above its class."""

    def add(calibrator: C) -> C:
        CALIBRATORS.register(name)(calibrator)
        calibrator.method = name
        return calibrator

    return add


def create(name: str, **options: Any) -> Calibrator:
    """Create an unfitted calibrator, which changes probabilities little or not at all.

    Args:
        name: One of `names()`.
        **options: Its options. Calibrators for K classes take `num_classes` (1: one sigmoid logit).

    Raises:
        InputError: Unknown name, or an option's value is out of range.
        TypeError: Unknown option.

    Examples:
        >>> float(create("temperature").temperature)
        1.0
    """
    calibrator: Calibrator = CALIBRATORS.create(name, **options)
    return calibrator


def applicable(classes: int) -> list[str]:
    """List the calibrators that labelled logits alone determine, for one logit (1) or K classes."""
    kinds = {name: find(name) for name in names() if name not in NETWORKS}
    return [
        name
        for name, kind in kinds.items()
        if (kind.multiclass if classes > 1 else kind.binary) and not (kind.needs_images or kind.needs_target)
    ]
