"""Reading JSON and YAML from untrusted files: size, depth and expansion are limited, and errors take one line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from densecal.errors import InputError
from densecal.io.regular import check_regular

MAX_JSON_BYTES = 1 << 28
MAX_YAML_BYTES = 1 << 17
"""Largest file that is read. The longest recipe takes 2 KB, and YAML is parsed at some 100 KB per second."""
MAX_JSON_VALUES = 1 << 23
"""Most values in a JSON file. An empty list takes three bytes of text and 64 of memory."""
MAX_VALUES = 50_000
"""Most values in a YAML file, references followed. A few lines of references can make billions."""


def read_text(path: Path, expected: str, limit: int = MAX_JSON_BYTES) -> str:
    """Read a UTF-8 file.

    Args:
        path: The file.
        expected: What should be there, for error messages.
        limit: Refuse larger files.

    Raises:
        InputError: It cannot be read, is too large, or is not text.
    """
    try:
        return read_bytes(path, expected, limit).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(path, f"unreadable ({error})", expected) from None


def read_lines(path: Path, expected: str) -> list[str]:
    """Read the lines of a list file, without empty ones. Names that are not UTF-8 become surrogates, as in paths.

    Raises:
        InputError: It cannot be read or is too large.
    """
    text = read_bytes(path, expected, MAX_JSON_BYTES).decode("utf-8-sig", errors="surrogateescape")
    return [line.strip() for line in text.split("\n") if line.strip()]


def read_bytes(path: Path, expected: str, limit: int) -> bytes:
    """Read a file.

    Raises:
        InputError: It cannot be read, is too large, or is not a regular file.
    """
    try:
        check_regular(path, expected)
        with path.open("rb") as stream:
            content = stream.read(limit + 1)
    except OSError as error:
        reason = "no such file" if isinstance(error, FileNotFoundError) else error.strerror or "unreadable"
        raise InputError(path, reason, expected) from None
    if len(content) > limit:
        raise InputError(path, f"more than {limit:,} bytes", expected)
    return content


def read_json(path: Path, expected: str) -> Any:
    """Read a JSON file.

    Raises:
        InputError: It cannot be read or is not JSON.
    """
    return parse_json(read_text(path, expected), path, expected)


def parse_json(text: str, where: str | Path, expected: str) -> Any:
    """Parse JSON.

    Raises:
        InputError: It is not JSON, nested too deeply, or has too many values.
    """
    if text.count(",") + text.count("[") + text.count("{") > MAX_JSON_VALUES:
        raise InputError(where, f"more than {MAX_JSON_VALUES:,} values", expected)
    try:
        return json.loads(text)
    except RecursionError:
        raise InputError(where, "JSON nested too deeply", expected) from None
    except ValueError as error:
        raise InputError(where, f"not JSON ({error})", expected) from None


def read_yaml(path: Path, expected: str) -> Any:
    """Read a YAML file of plain values; tags that ask for Python objects are refused.

    Raises:
        InputError: It cannot be read or is not YAML.
    """
    return parse_yaml(read_text(path, expected, MAX_YAML_BYTES), path, expected)


def parse_yaml(text: str, where: str | Path, expected: str) -> Any:
    """Parse YAML of plain values.

    Raises:
        InputError: It is not YAML, nested too deeply, or too large when its references are followed.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        # before values are constructed from the nodes, because a merge (<<) copies what it refers to
        for _ in _walk(node, _node_children, where, expected):
            pass
        value = loader.construct_document(node)
    except RecursionError:
        raise InputError(where, "YAML nested too deeply", expected) from None
    except InputError:
        raise
    # besides its own errors, yaml passes on those of int(), float() and date(), and those of malformed tags
    except (yaml.YAMLError, ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:
        raise InputError(where, f"not YAML ({' '.join(str(error).split())})", expected) from None
    for item in _walk(value, _value_children, where, expected):
        if isinstance(item, int) and item.bit_length() > 64:
            raise InputError(where, f"a number of {item.bit_length():,} bits", expected)
    return value


def _walk(root: Any, children: Callable[[Any], list[Any]], where: str | Path, expected: str) -> Iterator[Any]:
    """Yield every value inside, references followed, which may form cycles or multiply; refuse too many."""
    waiting, count = [root], 0
    while waiting:
        current = waiting.pop()
        count += 1
        waiting += children(current)
        if count + len(waiting) > MAX_VALUES:
            raise InputError(where, f"more than {MAX_VALUES:,} values", expected)
        yield current


def _node_children(node: Any) -> list[Any]:
    if not isinstance(node.value, list):
        return []
    return [child for entry in node.value for child in (entry if isinstance(entry, tuple) else (entry,))]


def _value_children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value.keys(), *value.values()]
    return list(value) if isinstance(value, list | tuple | set) else []
