"""How a trained model's outputs are repaired: one file a calibrator; `create(name)` makes one, `fit` fits it."""

from importlib import import_module
from pkgutil import iter_modules

from densecal.posthoc.base import Batch, Batches, Calibrator
from densecal.posthoc.logit_histogram import LogitHistogram
from densecal.posthoc.registry import create, find, names, options, register
from densecal.posthoc.storage import load, save

__all__ = [
    "Batch",
    "Batches",
    "Calibrator",
    "LogitHistogram",
    "create",
    "find",
    "load",
    "names",
    "options",
    "register",
    "save",
]

# A new calibrator is one new file: importing every module here is what registers it.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
