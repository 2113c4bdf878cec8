"""Lightning Fabric, imported without torchmetrics, which it imports for seconds only to learn its version."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from typing import Any

from lightning_utilities.core import imports
from packaging.version import Version

_compare_imported = imports.compare_version


def _compare_installed(package: str, op: Callable[..., Any], version: str, use_base_version: bool = False) -> bool:
    if package != "torchmetrics" or package in sys.modules:
        return _compare_imported(package, op, version, use_base_version)
    try:
        return bool(op(Version(metadata.version(package)), Version(version)))
    except metadata.PackageNotFoundError:
        return False


imports.compare_version = _compare_installed
try:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
    from lightning_fabric.wrappers import _FabricModule
finally:
    imports.compare_version = _compare_imported

__all__ = ["DDPStrategy", "Fabric", "_FabricModule"]
