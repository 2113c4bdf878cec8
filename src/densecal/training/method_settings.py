"""Which of a recipe's method settings overrides keep, and which they drop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from densecal import methods

_REPLACES = {"preset": ("lam",), "schedule": ("warmup", "accuracy")}
"""Options that another option sets. Overriding that one would do nothing while the recipe's values of these remain."""


def drop_replaced(settings: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Drop the method settings of a recipe that overrides replace.

    An override of the method keeps the options that the new method has. An override of an option that sets others drops
    those.

    Args:
        settings: The recipe's settings. The section ``method`` is changed.
        overrides: Settings such as ``method.name=als``.

    Returns:
        The options that were dropped.
    """
    section = settings.get("method")
    given = dict(override.removeprefix("method.").partition("=")[::2] for override in overrides if _is_option(override))
    if not isinstance(section, dict) or any(override.startswith("method=") for override in overrides):
        return []
    kept = set(section)
    if given.get("name") in methods.names():
        kept &= {"name", *methods.options(given["name"])}
    for option, others in _REPLACES.items():
        if option in given:
            kept -= set(others)
    dropped = [option for option in section if option not in kept]
    settings["method"] = {option: value for option, value in section.items() if option in kept}
    return [option for option in dropped if option not in given]


def _is_option(override: str) -> bool:
    return override.startswith("method.") and "=" in override
