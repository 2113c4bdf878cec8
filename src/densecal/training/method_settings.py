"""What overrides keep of a recipe's method settings, and what they drop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from densecal import methods

_REPLACES = {"preset": ("lam",), "schedule": ("warmup", "accuracy")}
"""Options that an option sets. A new value of it would do nothing beside the recipe's values of these."""


def drop_replaced(settings: dict[str, Any], overrides: Sequence[str]) -> list[str]:
    """Drop those of a recipe's method settings that overrides replace.

    Another method keeps every option that it has. An override of an option that sets others drops these.

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
