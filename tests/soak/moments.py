"""A kill at a chosen file operation: the disk holds what the operations before it left.

Functions that write a file are two operations: a kill before them, and one in the middle that leaves half of the file.
"""

import builtins
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from densecal.training import checkpoint


class Killed(BaseException):
    """The kill, which nothing catches."""


class Operations:
    """Counts file operations and kills one of them.

    Args:
        moment: Number of the operation that is killed.
    """

    def __init__(self, moment: int) -> None:
        self.moment, self.count = moment, 0

    def before(self) -> bool:
        """Count an operation, and return whether it is killed."""
        self.count += 1
        return self.count - 1 == self.moment

    def plain(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if self.before():
                raise Killed
            return original(*arguments, **options)

        return call

    def writer(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that writes the file named by the last of its arguments that is a path."""

        def call(*arguments: Any, **options: Any) -> Any:
            if self.before():
                raise Killed
            half = self.before()
            result = original(*arguments, **options)
            if half:
                path = next(argument for argument in reversed(arguments) if isinstance(argument, Path))
                os.truncate(path, path.stat().st_size // 2)
                raise Killed
            return result

        return call


@contextmanager
def kill_at(moment: int) -> Iterator[Operations]:
    """Kill the code in the block at its file operation with this number, counted from 0."""
    operations = Operations(moment)
    plain, writer = operations.plain, operations.writer
    with (
        patch.multiple(
            os, rename=plain(os.rename), link=plain(os.link), unlink=plain(os.unlink), rmdir=plain(os.rmdir),
            mkdir=plain(os.mkdir), open=plain(os.open), fsync=plain(lambda _: None), replace=plain(os.replace),
        ),
        patch.object(shutil, "copy2", writer(shutil.copy2)),
        patch.object(io, "open", plain(io.open)),
        patch.object(builtins, "open", plain(builtins.open)),
        patch.object(torch, "save", writer(torch.save)),
        patch.object(checkpoint, "save_file", writer(checkpoint.save_file)),
        patch.object(checkpoint, "exchange", plain(checkpoint.exchange)),
        patch.object(Path, "write_text", writer(Path.write_text)),
    ):  # fmt: skip
        yield operations
