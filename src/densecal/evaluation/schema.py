"""The JSON Schema of a record, made from its types: `python -m densecal.evaluation.schema`."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from collections.abc import Mapping
from typing import Any

from densecal.evaluation.codec import hints_of, is_flat, is_required, key_of
from densecal.evaluation.record import SCHEMA, Record

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
            definitions[name] |= _object(kind, definitions)
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
    hints = hints_of(kind)
    fields = [field for field in dataclasses.fields(kind) if not is_flat(field)]
    flat = [typing.get_args(hints[field.name])[1] for field in dataclasses.fields(kind) if is_flat(field)]
    schema = {
        "type": "object",
        "description": (kind.__doc__ or "").splitlines()[0],
        "properties": {key_of(field): _schema(hints[field.name], definitions) for field in fields},
        "required": [key_of(field) for field in fields if is_required(field)],
    }
    return schema | {"additionalProperties": _schema(flat[0], definitions)} if flat else schema


if __name__ == "__main__":
    print(json.dumps(record_schema(), indent=2))
