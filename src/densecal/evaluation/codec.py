"""Frozen dataclasses as JSON, and JSON as dataclasses, checked by their type hints.

The metadata of a field hold what its type does not tell:

* ``key``: its name in JSON, if that differs;
* ``flat``: its items are keys of the object itself, alongside the other fields;
* ``bounds``: the lowest and highest number that it may hold.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from densecal.errors import InputError

Decode = Callable[[Any], Any]
Field = dataclasses.Field[Any]

_MISSING = object()
_NAMES = {dict: "an object", list: "a list", str: "text", int: "a whole number", (int, float): "a number"}
_MOST_BITS = 1023
"""Largest size of an integer that fits into float64."""


def encode(value: Any) -> Any:
    """Return a dataclass, or the value of a field, as dictionaries, lists, numbers and text, without empty fields."""
    if dataclasses.is_dataclass(value):
        content: dict[str, Any] = {}
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            if item not in (None, (), {}) or field.default not in (None, ()):
                content |= encode(item) if is_flat(field) else {key_of(field): encode(item)}
        return content
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return [encode(item) for item in value] if isinstance(value, tuple | list) else value


def decode(kind: Any, value: Any, where: str | Path, key: str = "") -> Any:
    """Turn JSON into a value of a type.

    Args:
        kind: The type, such as a dataclass.
        value: The parsed JSON. Unknown keys are ignored.
        where: The file; errors name it and the key.
        key: The key of the value itself, if any.

    Raises:
        InputError: A key is missing or has an invalid value.
    """
    try:
        return _decoder(kind)(value)
    except _MismatchError as error:
        keys = ".".join([key] * bool(key) + error.keys[::-1])
        expected = f"{error.expected}, as densecal evaluate --json writes it"
        raise InputError(f"{where}: {keys}" if keys else where, error.problem, expected) from None


def key_of(field: Field) -> str:
    """Return the name of a field in JSON."""
    key: str = field.metadata.get("key", field.name)
    return key


def is_flat(field: Field) -> bool:
    """Return whether the items of a field are keys of the object itself."""
    return bool(field.metadata.get("flat", False))


def is_required(field: Field) -> bool:
    """Return whether a field has no default."""
    return field.default is dataclasses.MISSING


@functools.cache
def hints_of(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass."""
    return typing.get_type_hints(kind)


class _MismatchError(Exception):
    """An invalid value. ``keys`` are those on the path to it, the innermost first."""

    def __init__(self, problem: str, expected: str) -> None:
        super().__init__(problem, expected)
        self.problem, self.expected = problem, expected
        self.keys: list[str] = []


@functools.cache
def _decoder(kind: Any) -> Decode:
    """Return the function that turns JSON into a type. It is cached, because files hold the same types many times."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _of_dataclass(kind)
    if isinstance(kind, types.UnionType):
        return _of_union(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return _of_tuple(typing.get_args(kind))
    if typing.get_origin(kind) is Mapping:
        return _of_mapping(_decoder(typing.get_args(kind)[1]))
    return _number if kind is float else functools.partial(_expect, typing.get_origin(kind) or kind)


def _of_dataclass(kind: type) -> Decode:
    def decode(value: Any) -> Any:
        items = _expect(dict, value)
        decoded = {}
        for key, field, inner in _fields(kind):
            if is_flat(field):
                other_keys = {key_of(other) for other in dataclasses.fields(kind) if other is not field}
                decoded[field.name] = inner({key: item for key, item in items.items() if key not in other_keys})
            elif key in items or is_required(field):
                try:
                    decoded[field.name] = inner(items.get(key, _MISSING))
                    _check_bounds(field, decoded[field.name])
                except _MismatchError as error:
                    error.keys.append(key)
                    raise
        return kind(**decoded)

    return decode


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, Field, Decode], ...]:
    """Return the fields of a dataclass. They are resolved only once there is a value, as a record may hold records."""
    hints = hints_of(kind)
    return tuple((key_of(field), field, _decoder(hints[field.name])) for field in dataclasses.fields(kind))


def _of_tuple(kinds: tuple[Any, ...]) -> Decode:
    inner, size = _decoder(kinds[0]), None if kinds[-1] is Ellipsis else len(kinds)

    def decode(value: Any) -> tuple[Any, ...]:
        items = _expect(list, value)
        if size is not None and len(items) != size:
            raise _MismatchError(f"{len(items)} values", f"{size}")
        decoded: list[Any] = []
        try:
            decoded.extend(map(inner, items))
        except _MismatchError as error:
            error.keys.append(str(len(decoded)))
            raise
        return tuple(decoded)

    return decode


def _of_mapping(inner: Decode) -> Decode:
    def decode(value: Any) -> dict[str, Any]:
        decoded = {}
        for key, item in _expect(dict, value).items():
            try:
                decoded[key] = inner(item)
            except _MismatchError as error:
                error.keys.append(key)
                raise
        return decoded

    return decode


def _of_union(kinds: tuple[Any, ...]) -> Decode:
    """Return the decoder of a value that may be null, or of a figure that may be a list over classes."""
    lists = [_decoder(kind) for kind in kinds if typing.get_origin(kind) is tuple]
    others = [_decoder(kind) for kind in kinds if typing.get_origin(kind) is not tuple and kind is not types.NoneType]
    of_list, of_other = (lists or others)[0], (others or lists)[0]
    has_none = types.NoneType in kinds

    def decode(value: Any) -> Any:
        if value is None and has_none:
            return None
        return of_list(value) if isinstance(value, list) else of_other(value)

    return decode


def _number(value: Any) -> float:
    if type(value) is float:
        return value
    if value is None:
        return math.nan
    number: float = _expect((int, float), value)
    if isinstance(number, int) and number.bit_length() > _MOST_BITS:
        raise _MismatchError(f"an integer of {number.bit_length():,} bits", "a number")
    return number


def _expect(kind: Any, value: Any) -> Any:
    if type(value) is kind or (isinstance(value, kind) and not isinstance(value, bool)):
        return value
    raise _MismatchError("missing" if value is _MISSING else repr(value)[:60], _NAMES[kind])


def _check_bounds(field: Field, value: int | None) -> None:
    """Refuse a number that would make readers reserve too much memory."""
    low, high = field.metadata.get("bounds", (None, None))
    if low is not None and value is not None and not low <= value <= high:
        raise _MismatchError(str(value)[:60], f"{low} to {high:,}")
