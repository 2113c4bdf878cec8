"""Damaged caches: a packed cache is checked at every start, completely on request, and rebuilt with one line."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest

from densecal.data import Packed, Source, blocks, open_packed, open_source, pack
from densecal.errors import InputError
from tests.adversarial.common import densecal, write_set


@pytest.fixture
def source(tmp_path: Path) -> Source:
    write_set(tmp_path, 12)
    return open_source(tmp_path / "photos", tmp_path / "masks")


def packed(source: Source, folder: Path, verify: bool = False) -> Packed:
    return pack(source, source.names, 64, folder / "cache", workers=1, verify=verify)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "cache").iterdir())}


def change(path: Path, at: int, value: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(at)
        stream.write(value)


def zero(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def rename_sample(path: Path) -> None:
    path.write_text(path.read_text().replace('"original_sizes": [[24', '"original_sizes": [[25', 1))


DAMAGE = {
    "a changed byte of an image": ("images.u8", lambda path: change(path, 1000, b"\xff\x00\xff\x00")),
    "a changed last byte": ("masks.u8", lambda path: change(path, path.stat().st_size - 1, b"\x77")),
    "zeros after a power failure": ("images.u8", zero),
    "a cut file": ("masks.u8", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    "a longer file": ("images.u8", lambda path: path.write_bytes(path.read_bytes() + b"\0")),
    "a missing file": ("images.u8", Path.unlink),
    "a changed manifest": ("manifest.json", rename_sample),
    "half a manifest": ("manifest.json", lambda path: path.write_bytes(path.read_bytes()[:200])),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_noticed_at_the_start_and_rebuilt_with_a_line(tmp_path, source, caplog, kind):
    assert packed(source, tmp_path).rebuilt == "does not exist"
    whole = content(tmp_path)
    name, damage = DAMAGE[kind]
    damage(tmp_path / "cache" / name)
    with pytest.raises(InputError, match="cache"):
        open_packed(tmp_path / "cache")
    with caplog.at_level(logging.WARNING):
        assert packed(source, tmp_path).rebuilt
    (line,) = caplog.messages
    assert line.startswith(str(tmp_path / "cache"))
    assert line.endswith("; the cache is rebuilt")
    assert content(tmp_path) == whole
    assert packed(source, tmp_path).rebuilt == "", "and it is used from then on"


def test_the_command_prints_the_line_and_verifies_everything_on_request(tmp_path, source, monkeypatch, caplog):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(blocks, "CHECKED_BLOCKS", 2)  # the first and the last
    command = ["data", "pack", "photos", "masks", "--size", "64", "--out", "cache", "--workers", "1"]
    assert densecal(tmp_path, *command)[1] == "cache: 12 samples, packed\n"
    whole = content(tmp_path)
    change(tmp_path / "cache" / "images.u8", 70_000, b"\x00\xff\x00\xff")
    assert densecal(tmp_path, *command)[1] == "cache: 12 samples, up to date\n"
    assert content(tmp_path) != whole
    with caplog.at_level(logging.WARNING):
        assert densecal(tmp_path, *command, "--verify")[1] == "cache: 12 samples, packed\n"
    assert "images.u8 does not have the hash of the manifest; the cache is rebuilt" in caplog.text
    assert content(tmp_path) == whole
    assert densecal(tmp_path, *command, "--verify")[1] == "cache: 12 samples, up to date\n"


def test_every_block_is_looked_at_sooner_or_later(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 100)
    monkeypatch.setattr(blocks, "CHECKED_BLOCKS", 4)
    data = np.random.default_rng(0).integers(0, 256, 1_950, dtype=np.uint8).tobytes()
    checksums = blocks.BlockChecksums()
    for first in range(0, len(data), 333):
        checksums.update(data[first : first + 333])
    assert len(checksums.text()) == 8 * 20
    for block in range(20):
        damaged = bytearray(data)
        damaged[100 * block + 7] ^= 1
        (tmp_path / "a").write_bytes(damaged)
        # a damaged block is missed with probability 0.9, so 400 times in a row once in 10^18 runs
        assert not all(blocks.blocks_agree(tmp_path / "a", checksums.text()) for _ in range(400)), block
    (tmp_path / "a").write_bytes(data)
    assert all(blocks.blocks_agree(tmp_path / "a", checksums.text()) for _ in range(50))
    assert not blocks.blocks_agree(tmp_path / "a", checksums.text()[:-8])


def test_the_check_reads_no_more_for_a_larger_cache(tmp_path, monkeypatch):
    path = tmp_path / "a"
    with path.open("wb") as stream:
        stream.truncate(1000 * blocks.BLOCK_BYTES)
    checksums = blocks.BlockChecksums()
    checksums.update(bytes(blocks.BLOCK_BYTES))
    read = []
    crc32 = blocks.zlib.crc32
    monkeypatch.setattr(blocks.zlib, "crc32", lambda piece: read.append(len(piece)) or crc32(piece))
    assert blocks.blocks_agree(path, checksums.text() * 1000)
    assert sum(read) <= blocks.CHECKED_BLOCKS * blocks.BLOCK_BYTES
    assert len(read) > blocks.CHECKED_BLOCKS // 2


def test_a_cache_of_an_older_version_is_rebuilt(tmp_path, source, caplog):
    packed(source, tmp_path)
    manifest = json.loads((tmp_path / "cache" / "manifest.json").read_text())
    old = {key: value for key, value in manifest.items() if key not in ("blocks", "digest")}
    (tmp_path / "cache" / "manifest.json").write_text(json.dumps({**old, "version": 1}))
    assert packed(source, tmp_path).rebuilt == "format version 1 (wanted 2)"
