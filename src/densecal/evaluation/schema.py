"""The JSON Schema of a record, made from its types: `python -m densecal.evaluation.schema`."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any

from densecal.evaluation.record import SCHEMA, Calibration, Record, _hints, _is_required, _key

_PLAIN = {str: "string", int: "integer"}


def record_schema() -> dict[str, Any]:
    """Return the JSON Schema of what `densecal evaluate --json` writes for one method and data set."""
    definitions: dict[str, Any] = {}
    reference = _schema(Record, definitions)
    definitions["Record"]["properties"] = {"schema": {"const": SCHEMA}, **definitions["Record"]["properties"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "densecal evaluation record",
        **reference,
        "$defs": definitions,
    }


def _schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in definitions:
            definitions[name] = {}  # set first, because a record may contain records
            definitions[name] |= _calibration(definitions) if kind is Calibration else _object(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if isinstance(kind, types.UnionType):
        return {"anyOf": [_schema(option, definitions) for option in typing.get_args(kind)]}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        fixed = {} if inner[-1] is Ellipsis else {"minItems": len(inner), "maxItems": len(inner)}
        return {"type": "array", "items": _schema(inner[0], definitions), **fixed}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(inner[1], definitions)}
    if kind is types.NoneType:
        return {"type": "null"}
    return {"type": ["number", "null"]} if kind is float else {"type": _PLAIN[kind]}


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    fields = dataclasses.fields(kind)
    hints = _hints(kind)
    return {
        "type": "object",
        "description": (kind.__doc__ or "").splitlines()[0],
        "properties": {_key(field): _schema(hints[field.name], definitions) for field in fields},
        "required": [_key(field) for field in fields if _is_required(field)],
    }


def _calibration(definitions: dict[str, Any]) -> dict[str, Any]:
    hints = _hints(Calibration)
    return {
        "type": "object",
        "description": (Calibration.__doc__ or "").splitlines()[0],
        "properties": {"ci": _schema(hints["ci"], definitions)},
        "additionalProperties": {"type": ["number", "null"]},
        "required": ["ci"],
    }


if __name__ == "__main__":
    print(json.dumps(record_schema(), indent=2))
