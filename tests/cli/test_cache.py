"""`densecal cache` shows what training packed, and clears that and nothing else."""

import os
from pathlib import Path

import pytest

from densecal.data import open_source, pack
from densecal.data.caches import FORMAT, cache_root, list_caches
from tests import running
from tests.data import samples


def test_caches_are_shown_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    code, text, _ = running.run("cache", "show")
    assert (code, "0 caches, 0.0 MB" in text) == (0, True)
    images, masks = samples.folders(tmp_path / "set", ["a", "b", "c"])
    source = open_source(images, masks)
    root = cache_root()
    pack(source, source.names, 32, root / "large", workers=1)
    pack(source, source.names[:1], 16, root / "small", workers=1)
    (root / "own").mkdir()
    (root / "own" / "manifest.json").write_text("{}")
    assert [(cache.folder.name, cache.samples, cache.side) for cache in list_caches()] == [
        ("large", 3, 32),
        ("small", 1, 16),
    ]
    total = sum(file.stat().st_size for name in ("large", "small") for file in (root / name).iterdir())
    assert sum(cache.bytes for cache in list_caches()) == total
    _, text, _ = running.run("cache", "show")
    assert f"{root}: 2 caches, " in text
    assert "large" in text
    code, text, _ = running.run("cache", "clear")
    assert code == 0
    assert text.startswith(f"{root}: 2 caches removed, ")
    assert list_caches() == []
    assert (root / "own" / "manifest.json").exists()


def write_cache(folder: Path, size: str = "1") -> Path:
    folder.mkdir(parents=True)
    (folder / "images.u8").write_bytes(b"abc")
    (folder / "masks.u8").write_bytes(b"a")
    (folder / "manifest.json").write_text(f'{{"format": "{FORMAT}", "names": [], "size": {size}}}')
    return folder


def test_clearing_removes_nothing_else_in_a_cache_and_follows_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own = write_cache(cache_root() / "own")
    (own / "notes.txt").write_text("mine")
    elsewhere = write_cache(tmp_path / "elsewhere")
    (cache_root() / "link").symlink_to(elsewhere)
    code, text, _ = running.run("cache", "clear")
    assert (code, ": 1 caches removed, " in text) == (0, True)
    assert [path.name for path in own.iterdir()] == ["notes.txt"]
    assert len(list(elsewhere.iterdir())) == 3


def test_names_and_sizes_of_caches_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("\x1b[31mred", "[bold]", os.fsdecode(b"\xff")):
        write_cache(cache_root() / name)
    write_cache(cache_root() / "endless", "1e999")
    code, text, errors = running.run("cache", "show")
    assert (code, errors) == (0, "")
    for name in (r"\x1b[31mred", "[bold]", r"\xff"):
        assert name in text
    assert "\x1b" not in text
    assert "3 caches" in text
