r"""How names are written and shown: file names are bytes, and a stranger may have chosen them.

Python holds a byte that is not UTF-8 as a lone surrogate, which no file can store. It is written as `\xNN`, in every
file and on the terminal. Where text is shown, control characters are written the same way, so that none moves the
cursor, changes a colour or turns the direction of writing. A backslash stays as it is. So the escape cannot be undone:
a file named `\xff` with a real backslash looks the same as one named by that byte.
"""

from __future__ import annotations

import re
import unicodedata

_SURROGATE = re.compile("[\ud800-\udfff]")
_FORMULA = re.compile(r"[=+\-@\t\r]")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?(inf|nan)", re.ASCII | re.IGNORECASE)
_NOT_SHOWN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode categories: control, format (such as the direction of writing), surrogate, line and paragraph separators."""
_JOINERS = "\u200c\u200d"
"""Format characters that words of Persian and Indian languages contain."""


def storable(text: str) -> str:
    r"""Return text that UTF-8 can encode: a byte that is not UTF-8 becomes `\xNN`."""
    return _SURROGATE.sub(lambda match: _escape(match.group()), text)


def printable(text: str) -> str:
    r"""Return text for one line of a terminal, table or page: control characters become `\xNN` too."""
    if text.isprintable():  # true of almost every name, and fast
        return text
    return "".join(_escape(c) if unicodedata.category(c) in _NOT_SHOWN and c not in _JOINERS else c for c in text)


def csv_cell(text: str) -> str:
    """Return text for a CSV cell. A spreadsheet would run `=...` as a formula, so it gets a leading apostrophe.

    Numbers stay numbers.
    """
    shown = printable(text)
    return f"'{shown}" if _FORMULA.match(shown) and not _NUMBER.fullmatch(shown) else shown


def from_csv_cell(cell: str) -> str:
    """Return the text of a cell that `csv_cell` made, without the apostrophe; escapes stay."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell[1:]) else cell


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
