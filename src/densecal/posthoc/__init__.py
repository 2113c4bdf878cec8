"""Post-hoc calibrators, which repair the outputs of a trained model: one file each; `create(name)` makes one."""

from importlib import import_module
from pkgutil import iter_modules

from densecal.posthoc.base import Batch, Batches, Calibrator
from densecal.posthoc.logit_histogram import LogitHistogram
from densecal.posthoc.registry import applicable, create, find, names, options, register
from densecal.posthoc.storage import calibrator_files, load, save

__all__ = [
    "Batch",
    "Batches",
    "Calibrator",
    "LogitHistogram",
    "applicable",
    "calibrator_files",
    "create",
    "find",
    "load",
    "names",
    "options",
    "register",
    "save",
]

# A new calibrator is one new file: importing every module here registers it. Those of `networks` are imported later.
for _module in iter_modules(__path__):
    if not _module.ispkg and _module.name != "torch_module":
        import_module(f"{__name__}.{_module.name}")
