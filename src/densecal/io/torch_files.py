"""Files of `torch.save`, read without `torch.load`: plain containers of tensors, in memory bounded by the file size.

`torch.load(weights_only=True)` runs no code, but a file of 200 bytes can make it reserve any amount of memory: it calls
`bytearray` and tensor types with the arguments in the file, inflates compressed members, and trusts declared sizes.
Here only the few operations that containers of tensors need are implemented, and everything else is refused.
"""

from __future__ import annotations

import io
import pickletools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from densecal.errors import InputError
from densecal.io.archives import Archive
from densecal.io.urls import open_bytes

if TYPE_CHECKING:
    from torch import Tensor

EXPECTED = "a file of torch.save that holds tensors in plain containers"
MAX_PICKLE_BYTES = 1 << 24
"""Largest description of the containers. That of a network of a thousand tensors takes 0.1 MB."""
MAX_OPERATIONS = 1 << 20
"""Most steps of that description. A tensor takes some 25."""

_ZIP = b"PK\x03\x04"
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_LEGACY_VERSION = 1001
_DTYPES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}  # fmt: skip
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_TUPLE": tuple, "EMPTY_LIST": list, "EMPTY_DICT": dict}
_LITERALS = (
    "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINSTRING", "BINSTRING",
)  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

Storage = Callable[[str, int], "Tensor"]
"""Returns the bytes of a storage, given its key and their number."""


def read_torch_file(path: Path) -> Any:
    """Read what `torch.save` wrote, onto the CPU.

    Args:
        path: A file of the zip format, or of the older one.

    Returns:
        Dictionaries, lists, tuples, numbers, strings and tensors.

    Raises:
        InputError: The file is damaged, holds anything else, or claims more memory than it has bytes.
    """
    try:
        with open_bytes(path) as stream:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
            start = stream.read(len(_ZIP))
            stream.seek(0)
            if start != _ZIP:
                return _read_legacy(stream, path, size)
        return _read_zip(path, size)
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(path, "no such file", EXPECTED) from None
    except Exception as error:  # the lexer and torch raise errors of many kinds on damaged files
        problem = f"{type(error).__name__}: {(str(error) or 'no reason given').splitlines()[0]}"
        raise InputError(path, f"unreadable ({problem[:200]})", EXPECTED) from None


def _read_zip(path: Path, size: int) -> Any:
    import torch

    with Archive(path, EXPECTED) as archive:
        prefix = archive.members[0].filename.split("/")[0] + "/" if archive.members else ""
        members = {info.filename.removeprefix(prefix): info for info in archive.members}
        if len(members) < len(archive.members):
            raise InputError(path, "several members of the same name", EXPECTED)
        total = sum(info.file_size for info in archive.members)
        if total > size:
            raise InputError(path, f"members of {total:,} bytes in a file of {size:,}", "members that are stored whole")

        def content(name: str, limit: int) -> bytearray:
            if name not in members:
                raise InputError(path, f"no member {name[:100]!r}", EXPECTED)
            return archive.open(members[name], f"{path}:{name}", limit).read_all()

        if "byteorder" in members and content("byteorder", 16).decode("ascii") != sys.byteorder:
            raise InputError(path, "numbers of another byte order", EXPECTED)

        def storage(key: str, count: int) -> Tensor:
            data = content(f"data/{key}", size)
            if len(data) != count:
                raise InputError(f"{path}:data/{key}", f"{len(data):,} bytes", f"{count:,} bytes of numbers")
            return torch.frombuffer(data, dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)

        return _Unpickler(io.BytesIO(content("data.pkl", MAX_PICKLE_BYTES)), path, storage).load()


def _read_legacy(stream: BinaryIO, path: Path, size: int) -> Any:
    """Read the format before PyTorch 1.6: five pickles, then the bytes of all storages."""
    import torch

    storages: dict[str, Tensor] = {}

    def storage(key: str, count: int) -> Tensor:
        if count + sum(len(other) for other in storages.values()) > size:
            raise InputError(path, f"a tensor of {count:,} bytes in a file of {size:,}", EXPECTED)
        storages[key] = torch.empty(count, dtype=torch.uint8)
        return storages[key]

    head = io.BytesIO(stream.read(MAX_PICKLE_BYTES))
    unpickler = _Unpickler(head, path, storage)
    if unpickler.load() != _LEGACY_MAGIC or unpickler.load() != _LEGACY_VERSION:
        raise InputError(path, "not a file of torch.save", EXPECTED)
    if unpickler.load().get("little_endian") is not (sys.byteorder == "little"):
        raise InputError(path, "numbers of another byte order", EXPECTED)
    value = unpickler.load()
    keys = unpickler.load()
    if sorted(keys) != sorted(storages):
        raise InputError(path, "a list of tensors that does not fit them", EXPECTED)
    stream.seek(head.tell())
    for key in keys:
        # the number of elements comes first; it is known already
        count = stream.read(8)
        data = stream.read(len(storages[key])) if len(count) == 8 else b""
        if len(data) != len(storages[key]):
            raise InputError(path, "a file cut short", EXPECTED)
        if data:
            storages[key].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
    return value


class _Name(str):
    """The name of a function or type in a pickle."""


class _Unpickler:
    """The operations of a pickle that containers of tensors need.

    Args:
        stream: The pickle, or several.
        path: Name of the file in error messages.
        storage: Returns the bytes of a storage.
    """

    def __init__(self, stream: BinaryIO, path: Path, storage: Storage) -> None:
        self._stream, self._path, self._storage = stream, path, storage
        self._storages: dict[str, Tensor] = {}
        self._operations = 0

    def load(self) -> Any:
        """Return the next object."""
        self._stack: list[Any] = []
        self._marks: list[list[Any]] = []
        self._memo: dict[int, Any] = {}
        for operation, argument, _ in pickletools.genops(self._stream):
            self._operations += 1
            if self._operations > MAX_OPERATIONS:
                raise InputError(self._path, f"containers of more than {MAX_OPERATIONS:,} steps", EXPECTED)
            if operation.name == "STOP":
                return self._stack.pop()
            self._do(operation.name, argument)
        raise InputError(self._path, "a file cut short", EXPECTED)

    def _do(self, name: str, argument: Any) -> None:
        stack = self._stack
        if name in _LITERALS:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
        elif name == "GLOBAL":
            stack.append(_Name(argument.replace(" ", ".")))
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._memo[argument])
        elif name == "MARK":
            self._marks.append(stack)
            self._stack = []
        elif name in ("TUPLE", "APPENDS", "SETITEMS"):
            self._fill(name)
        elif name == "APPEND":
            value = stack.pop()
            self._top(list).append(value)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            self._top(dict)[key] = value
        elif name == "BUILD":
            stack.pop()  # a state dict's `_metadata`, versions of its modules
            self._top(dict)
        elif name == "BINPERSID":
            stack.append(self._open_storage(stack.pop()))
        elif name == "REDUCE":
            arguments = stack.pop()
            stack.append(self._call(stack.pop(), arguments))
        elif name != "PROTO":
            raise InputError(self._path, f"a pickle with the operation {name}", EXPECTED)

    def _fill(self, name: str) -> None:
        """Run an operation that takes all values after the last mark."""
        values = self._stack
        self._stack = self._marks.pop()
        if name == "TUPLE":
            self._stack.append(tuple(values))
        elif name == "APPENDS":
            self._top(list).extend(values)
        else:
            self._top(dict).update(zip(values[::2], values[1::2], strict=True))

    def _top(self, kind: type[Any]) -> Any:
        if type(self._stack[-1]) is not kind:
            raise InputError(self._path, f"a pickle that fills a {type(self._stack[-1]).__name__}", EXPECTED)
        return self._stack[-1]

    def _open_storage(self, identity: Any) -> Tensor:
        """Return the numbers of a storage, flat."""
        import torch

        # the older format has a sixth entry for storages that are parts of others; torch.save leaves it empty
        kind, storage_type, key, _, count, *view = identity
        dtype_name = _DTYPES.get(str(storage_type).rsplit(".", 1)[-1])
        if kind != "storage" or dtype_name is None or not isinstance(storage_type, _Name) or any(view):
            raise InputError(self._path, f"tensors of {str(storage_type)[:100]!r}", EXPECTED)
        dtype: torch.dtype = getattr(torch, dtype_name)
        if not isinstance(count, int) or count < 0:
            raise InputError(self._path, f"a tensor of {count!r} numbers", EXPECTED)
        key = str(key)
        if key not in self._storages:
            self._storages[key] = self._storage(key, count * dtype.itemsize).view(dtype)
        numbers = self._storages[key]
        if len(numbers) != count or numbers.dtype != dtype:
            raise InputError(self._path, f"two sizes or types of storage {key[:100]!r}", EXPECTED)
        return numbers

    def _call(self, name: Any, arguments: Any) -> Any:
        if name == "collections.OrderedDict" and arguments == ():
            return {}
        if name == "torch.Size" and len(arguments) == 1:
            return tuple(arguments[0])
        if name == "torch._utils._rebuild_parameter":
            return arguments[0]
        if name in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
            numbers, offset, size, stride = arguments[:4]
            tensor = numbers.as_strided(size, stride, offset)
            if tensor.numel() > numbers.numel():
                raise InputError(self._path, f"a tensor of {tensor.numel():,} numbers from fewer", EXPECTED)
            return tensor
        raise InputError(self._path, f"a pickle that calls {str(name)[:100]}", EXPECTED)
