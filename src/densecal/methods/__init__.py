"""Methods that train calibrated models: one file per method; `create(name, num_samples=N)` makes one."""

from importlib import import_module
from pkgutil import iter_modules

from densecal.methods.base import Method
from densecal.methods.registry import create, names, options, register

__all__ = ["Method", "create", "names", "options", "register"]

# A new method is one new file: importing every module here registers it.
for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
