"""The training methods by name: a method is one file with one decorated class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from densecal.runtime.registry import Registry

if TYPE_CHECKING:
    from densecal.methods.base import Method

METHODS: Registry[type[Method]] = Registry("method")
register = METHODS.register
names = METHODS.names
options = METHODS.options


def create(name: str, **options: Any) -> Method:
    """Create a training method.

    Args:
        name: One of `names()`.
        **options: Its options. Every method takes `num_samples` (training images; required), `num_classes`
            (1: one sigmoid logit), `ignore_index` (value of void pixels) and `seed`.

    Raises:
        ValueError: Unknown name, or an option's value is out of range.
        TypeError: Unknown option, or `num_samples` is missing.

    Examples:
        >>> create("bce", num_samples=10).num_samples
        10
    """
    METHODS.find(name)
    if "num_samples" not in options:
        raise TypeError(f"method {name!r}: missing option 'num_samples', the number of training images")
    method: Method = METHODS.create(name, **options)
    return method
