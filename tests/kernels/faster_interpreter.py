"""Triton's interpreter without its repetitions: check scripts import this before they run a kernel."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


@functools.cache
def _languages(function: Callable[..., Any]) -> list[ModuleType]:
    modules = [value for value in vars(inspect.getmodule(function)).values() if inspect.ismodule(value)]
    return [module for module in modules if module in (tl, tl.core)]


def _call(self: Any, *arguments: Any, **options: Any) -> Any:
    """Call a function of a kernel. The original patches the language for each call, whether or not it is patched."""
    if any(tl.core.is_builtin(language.arange) for language in _languages(self.fn)):
        interpreter._patch_lang(self.fn)
    try:
        return self.rewrite()(*arguments, **options)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


_of_scalar = functools.cache(interpreter._get_np_dtype)


def _get_np_dtype(kind: Any) -> Any:
    """Return NumPy's type for one of Triton. The original makes a table of all of them each time."""
    scalar = kind.element_ty if isinstance(kind, tl.block_type) else kind
    return interpreter.np.dtype("u8") if isinstance(scalar, tl.pointer_type) else _of_scalar(scalar)


interpreter.InterpretedFunction.__call__ = _call
interpreter._get_np_dtype = _get_np_dtype
# whether integers overflow is computed with every sum and product, and then reported in debug mode alone
builder = interpreter.interpreter_builder
assert not builder.options.debug
builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
