"""Reading JSON and YAML from untrusted files: size, depth and expansion are limited, and errors take one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from densecal.errors import InputError
from densecal.io.regular import check_regular

MAX_JSON_BYTES = 1 << 28
MAX_YAML_BYTES = 1 << 17
"""Larger files are refused unread. The longest recipe takes 2 KB, and YAML is parsed at some 100 KB per second."""
MAX_VALUES = 50_000
"""Values of a YAML file with its references followed. A few lines of references can make billions."""


def read_text(path: Path, expected: str, limit: int = MAX_JSON_BYTES) -> str:
    """Read a UTF-8 file.

    Args:
        path: The file.
        expected: What errors say should be there.
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
        InputError: It is not JSON, or nested too deeply.
    """
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
        value = yaml.safe_load(text)
    except RecursionError:
        raise InputError(where, "YAML nested too deeply", expected) from None
    # besides its own errors, yaml passes on those of int(), float() and date(), and of malformed tags
    except (yaml.YAMLError, ValueError, OverflowError, LookupError, TypeError, AttributeError) as error:
        raise InputError(where, f"not YAML ({' '.join(str(error).split())})", expected) from None
    _check_extent(value, where, expected)
    return value


def _check_extent(value: Any, where: str | Path, expected: str) -> None:
    """Refuse a value that is too large once its references, which may contain or multiply it, are followed."""
    waiting, count = [value], 0
    while waiting:
        current = waiting.pop()
        count += 1
        if count + len(waiting) > MAX_VALUES:
            raise InputError(where, f"more than {MAX_VALUES:,} values", expected)
        if isinstance(current, dict):
            waiting += [*current.keys(), *current.values()]
        elif isinstance(current, list | tuple | set):
            waiting += current
        elif isinstance(current, int) and current.bit_length() > 64:
            raise InputError(where, f"a number of {current.bit_length():,} bits", expected)
