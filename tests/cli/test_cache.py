"""`densecal cache` shows what training packed, and clears that and nothing else."""

from pathlib import Path

import pytest

from densecal.data import open_source, pack
from densecal.data.caches import cache_root, list_caches
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
