"""The reference of every setting of `densecal train`: meaning, default and allowed values, from the schema itself."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from densecal import methods, posthoc
from densecal.errors import InputError
from densecal.models import architectures
from densecal.training.config import Config
from densecal.training.sections import Section

_INTRODUCTION = """\
# Settings of `densecal train`

**Which settings are there, and what do they do?** A run takes a recipe, or a YAML file with the sections below, and any
number of `section.key=value` arguments, which win over the file. `densecal train --settings` prints this page in the
terminal, and `densecal train --settings optim` or `densecal train --settings aslp-mc` one section of it. What a run was
trained with is in its `config.yaml`.

    densecal train sod data.images=DUTS-TR optim.lr=1e-4 method.name=slp --out runs/slp

This page is generated: `python docs/tools/make_settings.py` writes it from the schema in
`src/densecal/training/config.py` and the docstrings of the methods.
"""
GIVEN_BY_THE_RUN = ("num_samples", "num_classes", "ignore_index", "seed")
"""Options of every method that the run itself sets."""
_SHARED = (*GIVEN_BY_THE_RUN, "loss")
"""Options of every method, which the section of no method repeats."""


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        key: As it is written on the command line, such as ``optim.lr``.
        meaning: What it does.
        default: Its value unless given, as text; empty if it must be given.
        allowed: Which values it takes.
    """

    key: str
    meaning: str
    default: str
    allowed: str


@dataclass(frozen=True)
class SettingsSection:
    """The settings of one section of the configuration, or the options of one method.

    Attributes:
        name: Such as ``optim``, ``data.scenes`` or ``method aslp-mc``.
        summary: What the section is about.
        settings: Its settings, in the order of the schema.
    """

    name: str
    summary: str
    settings: list[Setting]


def reference(name: str | None = None) -> list[SettingsSection]:
    """Return the sections of the reference.

    Args:
        name: A section, such as ``optim``, or a method, such as ``aslp-mc``; all of them unless given. ``method``
            comes with the options of every method.

    Raises:
        InputError: There is no such section and no such method.
    """
    schema = Config.model_json_schema()
    sections = {key: _section(key, annotation, schema["$defs"]) for key, annotation in _section_classes(Config, "")}
    by_method = {method: _method_section(method) for method in methods.names()}
    if name is None or name == "method":
        wanted = [sections[key] for key in sections if name in (None, key)]
        position = 1 + next(i for i, section in enumerate(wanted) if section.name == "method")
        return wanted[:position] + list(by_method.values()) + wanted[position:]
    if name in by_method:
        return [by_method[name]]
    chosen = [section for key, section in sections.items() if key == name or key.startswith(f"{name}.")]
    if not chosen:
        raise InputError("--settings", name, f"one of {', '.join(sections)}, or a method ({', '.join(by_method)})")
    return chosen


def markdown() -> str:
    """Return the reference as a page of the documentation."""
    lines = [_INTRODUCTION]
    for section in reference():
        lines += [f"## {section.name}", "", section.summary, ""]
        if section.settings:
            lines += ["| setting | default | allowed | meaning |", "|---|---|---|---|"]
            for setting in section.settings:
                cells = (f"`{setting.key}`", _code(setting.default), setting.allowed, setting.meaning)
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        else:
            lines.append("It has no options.")
        lines.append("")
    return "\n".join(lines)


def _section_classes(model: type[BaseModel], prefix: str) -> Iterable[tuple[str, type[BaseModel]]]:
    """Yield the sections of the configuration with their keys, subsections after the section that holds them."""
    for name, field in model.model_fields.items():
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for candidate in candidates:
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                yield f"{prefix}{name}", candidate
                yield from _section_classes(candidate, f"{prefix}{name}.")


def _section(key: str, model: type[BaseModel], definitions: dict[str, Any]) -> SettingsSection:
    described = _descriptions(model, "Attributes")
    properties = definitions[model.__name__]["properties"]
    settings = []
    for name, field in model.model_fields.items():
        default = "" if field.is_required() else _value(field.get_default(call_default_factory=True))
        allowed = _known_names(f"{key}.{name}") or _allowed(properties[name], definitions)
        meaning = field.description or described.get(name, "")
        settings.append(Setting(f"{key}.{name}", meaning, default, allowed))
    return SettingsSection(key, _summary(model), settings)


def _known_names(key: str) -> str:
    """Return the allowed values of settings that are text to the schema but names to the code."""
    if key == "model.arch":
        return _choice(architectures())
    if key == "method.name":
        return _choice(methods.names())
    if key == "model.calibrator":
        return _choice([*sorted({*posthoc.applicable(1), *posthoc.applicable(2)}), "null"])
    return ""


def _method_section(name: str) -> SettingsSection:
    kind = methods.registry.METHODS.find(name)
    # the methods that perturb labels at random explain what they share in one place
    described = _descriptions(methods.registry.METHODS.find("aslp-mei"), "Args") | _descriptions(kind, "Args")
    parameters: dict[str, inspect.Parameter] = {}
    for base in reversed(kind.__mro__):
        if "__init__" in vars(base) and base is not object:
            parameters |= inspect.signature(vars(base)["__init__"]).parameters
    settings = []
    for option in methods.options(name):
        if option in _SHARED:
            continue
        parameter = parameters[option]
        default = "" if parameter.default is parameter.empty else _value(parameter.default)
        kinds = str(parameter.annotation).replace(" | None", " or null")
        for python, plain in {"float": "number", "int": "whole number", "str": "text", "bool": "true or false"}.items():
            kinds = re.sub(rf"\b{python}\b", plain, kinds)
        settings.append(Setting(f"method.{option}", described.get(option, ""), default, kinds))
    return SettingsSection(f"method {name}", _summary(kind), settings)


def _descriptions(kind: type, heading: str) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say about each name, on one line."""
    meanings: dict[str, str] = {}
    for base in kind.__mro__:
        if base.__module__.startswith("densecal") and base.__doc__:
            _, _, text = inspect.cleandoc(base.__doc__).partition(f"{heading}:\n")
            for block in re.split(r"\n(?=    \S)", text.partition("\n\n")[0]):
                name, colon, meaning = block.strip().partition(": ")
                if colon and not meaning.startswith("As for "):  # then another class says it
                    meanings.setdefault(name, " ".join(meaning.split()).replace("``", "`"))
    return meanings


def _summary(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").partition("\n")[0]


def _allowed(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Describe the values that a JSON schema allows."""
    if "$ref" in schema:
        return "a section"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_allowed(part, definitions) for part in schema["anyOf"]))
    if "enum" in schema:
        return _choice(schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type")
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]
        inner = _allowed(items[0], definitions)
        return f"a list of {len(items)}: {inner}" if "prefixItems" in schema else f"a list: {inner}"
    if kind == "object":
        values = schema.get("additionalProperties")
        return (
            f"names with values: {_allowed(values, definitions)}" if isinstance(values, dict) else "names with values"
        )
    plain = {
        "integer": "whole number",
        "number": "number",
        "boolean": "true or false",
        "string": "text",
        "null": "null",
    }
    limits = [
        f"{word} {_value(schema[key])}"
        for key, word in (
            ("minimum", "at least"),
            ("exclusiveMinimum", "above"),
            ("maximum", "at most"),
            ("exclusiveMaximum", "below"),
        )
        if key in schema
    ]
    return " ".join([plain.get(str(kind), "anything"), *([", ".join(limits)] if limits else [])])


def _choice(names: Iterable[Any]) -> str:
    return "one of " + ", ".join(map(str, names))


def _value(value: Any) -> str:
    """Return a value as it is written in YAML."""
    if isinstance(value, Section):
        return "see its section"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value, default=list)


def _code(text: str) -> str:
    return f"`{text}`" if text else "required"
