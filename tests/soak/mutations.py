"""Damaging files on purpose: flipped bits, cuts, foreign bytes, absurd numbers, and values of the wrong type."""

import copy
import io
import json
import random
import struct
import zlib

import torch
from torch import Tensor

EXTREMES = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
WRONG_VALUES = (
    None, True, False, 0, 1, -1, 3.5, -0.0, 1e308, -(2**31), 2**31, 2**63, 10**400, float("nan"), float("inf"), "",
    "x", "../../x", "/", "1e999", "\x00", "\ud800", "x" * 5000, [], [[]], {}, [None], {"": None}, {"a": {"b": []}},
    [1, "2", None], ["../x"] * 3, [0] * 2000,
)  # fmt: skip
WRONG_TEXTS = (
    "null", "true", "-1", "0", "1e999", ".nan", "-.inf", "9" * 400, "9" * 5000, "0x" + "f" * 5000, "''", "[]", "{}",
    "[[", "}", "'", '"', ":", "- ", "\t", "&a [*a]", "*a", "!!python/name:os.system", "!!binary x", "!!timestamp x",
    "!!bool x", "!!int ''", "!!float ''", "!!set {a}", "!!omap [a]", "2001-99-99", "1:99:99", "? [a]\n: b", "<<: 3",
    "\x00", "\u2028", "../..", "9e9" * 50,
)  # fmt: skip
DEEP = 100_000


def damage(data: bytes, rng: random.Random) -> bytes:
    """Do one kind of damage that disks, networks and strangers do to any file."""
    kind = rng.randrange(10)
    at = rng.randrange(len(data) + 1)
    # headers are where a byte matters most
    near = min(len(data), rng.randrange(256)) if rng.random() < 0.6 else at
    length = rng.randrange(1, 65)
    if kind <= 2:
        flipped = bytearray(data)
        for _ in range(rng.randrange(1, 9)):
            if flipped:
                position = rng.randrange(len(flipped)) if rng.random() < 0.5 else min(near, len(flipped) - 1)
                flipped[position] ^= 1 << rng.randrange(8)
        return bytes(flipped)
    if kind == 3:
        return data[:at]
    if kind == 4:
        return data[:near] + rng.randbytes(length) + data[near + length :]
    if kind == 5:
        number = struct.pack(rng.choice("<>") + "Q", rng.choice(EXTREMES))
        width = rng.choice((2, 4, 8))
        part = number[:width] if rng.random() < 0.5 else number[8 - width :]
        return data[:near] + part + data[near + width :]
    if kind == 6:
        return data[:near] + data[near + length :]
    if kind == 7:
        return data[:at] + data[at : at + length] * rng.randrange(2, 50) + data[at + length :]
    if kind == 8:
        return rng.choice((b"", b"\x00" * 100, rng.randbytes(500), data + rng.randbytes(length), data[::-1]))
    return damage(damage(data, rng), rng)


def wrong_json(data: bytes, rng: random.Random) -> bytes:
    """Return JSON whose values have other types, are missing, too many, too deep or too long."""
    kind = rng.randrange(12)
    if kind == 0:
        return rng.choice((b"[" * DEEP, b'{"a":' * DEEP, b"[" * DEEP + b"]" * DEEP, b"9" * 10_000, b'"\\ud800"'))
    if kind == 1:
        return json.dumps(rng.choice(WRONG_VALUES)).encode("utf-8", "surrogatepass")
    value = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        _replace_one(value, rng)
    text = json.dumps(value)
    return text.encode("utf-8", "surrogatepass")


def _wrong_value(rng: random.Random) -> object:
    # a copy, because the next damage may go inside it
    return copy.deepcopy(rng.choice(WRONG_VALUES))


def _replace_one(value: object, rng: random.Random) -> None:
    """Replace, drop or add one entry somewhere inside."""
    containers = list(_containers(value))
    container = rng.choice(containers)
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    action = rng.randrange(6)
    if action == 0 or not keys:
        if isinstance(container, dict):
            container[rng.choice(("", "x", "version", "__class__"))] = _wrong_value(rng)
        else:
            container.append(_wrong_value(rng))
    elif action == 1:
        del container[rng.choice(keys)]
    else:
        container[rng.choice(keys)] = _wrong_value(rng)


def _containers(value: object) -> list[dict | list]:
    found = []
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict | list):
            found.append(current)
            waiting += current.values() if isinstance(current, dict) else current
    return found


def wrong_yaml(data: bytes, rng: random.Random) -> bytes:
    """Return YAML with other values, tags that request code, or references that grow without end."""
    kind = rng.randrange(10)
    if kind == 0:
        return rng.choice((b"[" * DEEP, b"{a: " * 20_000, b"- " * 20_000, b"a:\n" * 20_000, b"x" * 2_000_000))
    if kind == 1:
        lines = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10) if i else 'x'}]" for i in range(12)]
        return (
            "\n".join(lines).encode() + b"\ndata: *a11\nmodel: {arch: *a11}\n" + (data if rng.random() < 0.5 else b"")
        )
    if kind == 2:
        return b"data: &a {scenes: *a}\nmethod: &b [*b]\n"
    if kind == 3:
        return b"!!python/object/apply:os.system ['touch OWNED']\n" + data
    lines = data.decode().split("\n")
    for _ in range(rng.choice((1, 1, 2, 4))):
        number = rng.randrange(len(lines))
        key, colon, _ = lines[number].partition(":")
        wrong = rng.choice(WRONG_TEXTS)
        lines[number] = rng.choice((f"{key}{colon} {wrong}", wrong, f"{wrong}: 1", lines[number] * 2, ""))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def wrong_npy(data: bytes, rng: random.Random) -> bytes:
    """Return a .npy whose header lies about type, shape or its own length."""
    kinds = ("<f4", "<f8", "<f2", "|u1", "<U500000000", "|V2147483647", "|S1000000000", "|O", "<c16", "<M8[ns]", ">f4",
             "|b1", "<i8", "<f16", "<f4,<f4", "x")  # fmt: skip
    sides = (0, 1, -1, -7, 8, 30, 40, 2**16, 2**31, 2**62, 10**30, True)
    shape = tuple(rng.choice(sides) for _ in range(rng.randrange(5)))
    header = repr({"descr": rng.choice(kinds), "fortran_order": rng.random() < 0.3, "shape": shape})
    if rng.random() < 0.1:
        header = rng.choice(("(" * 5000, "{" * 200, "x" * 9000, "{'descr': __import__('os')}", "-" * 9000 + "1"))
    text = header.encode() + b"\n"
    if rng.random() < 0.5:
        return b"\x93NUMPY\x01\x00" + struct.pack("<H", min(len(text), 65535)) + text + data[128:]
    length = rng.choice((len(text), 0xFFFFFFFF, 0x7FFFFFFF, 0))
    return b"\x93NUMPY" + bytes([rng.choice((2, 3, 9)), 0]) + struct.pack("<I", length) + text + data[128:]


def wrong_png(data: bytes, rng: random.Random) -> bytes:
    """Return a PNG whose header, with a correct checksum, claims another size, depth or colour type."""
    sides = (0, 1, 7, 4000, 8192, 8193, 65535, 2**31 - 1)
    body = struct.pack(
        ">IIBBBBB", rng.choice(sides), rng.choice(sides), rng.choice((1, 2, 4, 8, 16, 3, 0)), rng.randrange(7), 0, 0,
        rng.randrange(2),
    )  # fmt: skip
    chunk = b"IHDR" + body
    return data[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:]


def wrong_state(data: bytes, rng: random.Random) -> bytes:
    """Return an optimizer state whose tensors have other shapes, types or memory, and whose other values are wrong."""
    state = torch.load(io.BytesIO(data), weights_only=True)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        holder = rng.choice(_containers(state))
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = rng.choice(keys) if keys and rng.random() < 0.9 else "more"
        value = holder[key] if key in keys else None
        if isinstance(holder, list) and key == "more":
            holder.append(_wrong_value(rng))
        elif keys and rng.random() < 0.1:
            del holder[rng.choice(keys)]
        elif isinstance(value, Tensor) and rng.random() < 0.8:
            holder[key] = _wrong_tensor(value, rng)
        else:
            holder[key] = _wrong_value(rng)
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


def _wrong_tensor(tensor: Tensor, rng: random.Random) -> Tensor:
    kind = rng.randrange(9)
    if kind == 0:
        return torch.zeros([rng.randrange(9) for _ in range(rng.randrange(5))])
    if kind == 1:
        return tensor.to(rng.choice((torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64)))
    if kind == 2:  # the same number of elements, in the memory of one
        return tensor.flatten()[:1].expand(tensor.numel()).reshape(-1).as_strided(tensor.shape, [0] * tensor.ndim)
    if kind == 3:
        return tensor.to("meta")
    if kind == 4:
        return tensor.to_sparse()
    if kind == 5:
        return tensor.flatten()
    if kind == 6:
        return torch.full_like(tensor, rng.choice((0, 1, 2, 255, 623, 624)))
    if kind == 7 and tensor.is_floating_point():
        return tensor * rng.choice((float("nan"), float("inf"), -1.0, 1e38))
    return torch.cat([tensor.flatten(), tensor.flatten()])
