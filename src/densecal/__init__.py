"""densecal: segmentation models whose confidence can be believed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from densecal.evaluation.folders import evaluate
    from densecal.methods import create as create_method
    from densecal.metrics.calibration import CalibrationMeter, calibration_errors
    from densecal.models import build as build_model
    from densecal.posthoc import load as load_calibrator

__version__ = "0.1.0"

__all__ = [
    "CalibrationMeter",
    "__version__",
    "build_model",
    "calibration_errors",
    "create_method",
    "evaluate",
    "load_calibrator",
]

_HOMES = {
    "CalibrationMeter": ("densecal.metrics.calibration", "CalibrationMeter"),
    "build_model": ("densecal.models", "build"),
    "calibration_errors": ("densecal.metrics.calibration", "calibration_errors"),
    "create_method": ("densecal.methods", "create"),
    "evaluate": ("densecal.evaluation.folders", "evaluate"),
    "load_calibrator": ("densecal.posthoc", "load"),
}
"""Where the public names live; a name is imported when it is first used."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'densecal' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
