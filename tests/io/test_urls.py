"""Paths that are URLs: commands read and write them through fsspec as they do files on disk."""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from densecal.data import open_source
from densecal.io import urls as remote
from densecal.prediction.folder import predict
from densecal.prediction.predictor import Predictor
from densecal.training.config import load_config
from tests.evaluation.test_folders import make_pair, to_levels
from tests.running import run

memory = fsspec.filesystem("memory")


def png(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "png")
    return stream.getvalue()


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Path]:
    """The same data on disk and in fsspec's memory."""
    for i in range(4):
        p, y = make_pair(i)
        files = {
            f"maps/im {i}.png": png(to_levels(p)),
            f"masks/im {i}.png": png(to_levels(y.astype(float))),
            f"photos/im {i}.png": png(np.repeat(to_levels(p)[:, :, None], 3, axis=2)),
        }
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(content)
            memory.pipe_file(f"/bucket/{name}", content)
    yield tmp_path
    memory.rm("/bucket", recursive=True)


def test_a_url_survives_being_a_path() -> None:
    for given in ("s3://bucket/some/maps", "memory://bucket/x.png", "gs://b/c", "file:///tmp/x"):
        assert remote.is_remote(Path(given))
        assert remote.url(Path(given)) == given
        assert remote.url(Path(given) / "a b.png") == f"{given}/a b.png"
    for given in ("maps", "/data/maps", "c:", "a:b/c", "../s3:/x", "x/s3:/y"):
        assert not remote.is_remote(Path(given))


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_evaluate_reads_and_writes_urls(bucket: Path, kind: str) -> None:
    root = "memory://bucket" if kind == "memory" else f"file://{bucket}"
    names = ("--name", "n", "--dataset", "d", "--workers", 1)
    assert run("evaluate", bucket / "maps", bucket / "masks", "--json", bucket / "local.json", *names)[0] == 0
    code, _, err = run("evaluate", f"{root}/maps", f"{root}/masks", "--json", f"{root}/out.json", *names)
    assert code == 0, err
    written = memory.cat_file("/bucket/out.json") if kind == "memory" else (bucket / "out.json").read_bytes()
    assert written == (bucket / "local.json").read_bytes()
    assert json.loads(written)["images"] == 4


def test_arrays_are_read_from_urls(bucket: Path) -> None:
    for i in range(4):
        stream = io.BytesIO()
        np.save(stream, make_pair(i)[0])
        memory.pipe_file(f"/bucket/floats/im {i}.npy", stream.getvalue())
    code, _, err = run("evaluate", "memory://bucket/floats", bucket / "masks", "--workers", 1)
    assert code == 0, err


def test_errors_about_a_missing_folder_and_an_unknown_scheme_take_one_line() -> None:
    for url, expected in (("memory://nowhere/maps", "no such folder"), ("nonsense://x/maps", "rotocol")):
        code, _, err = run("evaluate", url, url)
        assert code == 2
        assert len(err.splitlines()) == 1
        assert expected in err


def test_sources_open_folders_zips_and_lists_by_url(bucket: Path) -> None:
    on_disk = open_source(bucket / "photos", bucket / "masks")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        for name in on_disk.names:
            file.writestr(f"images/{name}.png", (bucket / "photos" / f"{name}.png").read_bytes())
            file.writestr(f"masks/{name}.png", (bucket / "masks" / f"{name}.png").read_bytes())
    memory.pipe_file("/bucket/set.zip", archive.getvalue())
    lines = [f"photos/{name}.png\tmasks/{name}.png" for name in on_disk.names]
    memory.pipe_file("/bucket/list.txt", "\n".join(lines).encode())
    for source in (
        open_source("memory://bucket/photos", "memory://bucket/masks"),
        open_source("memory://bucket/set.zip"),
        open_source("memory://bucket/list.txt"),
        open_source(f"file://{bucket}/photos", f"file://{bucket}/masks"),
    ):
        assert source.names == on_disk.names
        assert len({source.fingerprint(name) for name in source.names}) == 4
        for name in source.names:
            np.testing.assert_array_equal(source.image(name), on_disk.image(name))
            np.testing.assert_array_equal(source.mask(name), on_disk.mask(name))


def test_data_pack_reads_urls(bucket: Path) -> None:
    pack = ("data", "pack", "memory://bucket/photos", "memory://bucket/masks", "--size", 32, "--workers", 1)
    code, out, err = run(*pack, "--out", bucket / "packed")
    assert code == 0, err
    assert "4 samples, packed" in out
    code, out, _ = run(*pack, "--out", bucket / "packed")
    assert "up to date" in out


def test_predict_reads_and_writes_urls(bucket: Path) -> None:
    class Brightness(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return 4 * images.mean(dim=1, keepdim=True) - 2

    predictor = Predictor(Brightness(), load_config("demo"), torch.device("cpu"))
    assert predict(predictor, Path("memory://bucket/photos"), Path("memory://bucket/predicted")) == 4
    assert predict(predictor, bucket / "photos", bucket / "predicted") == 4
    for path in (bucket / "predicted").iterdir():
        assert memory.cat_file(f"/bucket/predicted/{path.name}") == path.read_bytes()


class Counting(fsspec.spec.AbstractFileSystem):
    """A store of three files that counts what it is asked for, and fails every request but the third."""

    protocol = "counting"
    cachable = False
    requests: ClassVar[list[str]] = []
    fails = 0
    files: ClassVar[dict[str, bytes]] = {"a": b"1", "b": b"22", "empty": b""}

    def cat_file(self, path, start=None, end=None, **_):
        self.requests.append(path)
        if len(self.requests) <= Counting.fails:
            raise OSError(5, "the store is busy")
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][start:end]


@pytest.fixture
def counting(monkeypatch):
    fsspec.register_implementation("counting", Counting, clobber=True)
    monkeypatch.setattr(remote, "_PAUSE_SECONDS", 0.0)
    Counting.requests.clear()
    Counting.fails = 0
    return Counting


def test_files_are_fetched_once_and_forgotten_afterwards(counting):
    paths = [Path("counting://a"), Path("counting://b"), Path("counting://absent")]
    seen = []
    for path in remote.fetch_ahead(paths[:2], lambda path: [path, paths[2]]):
        seen.append((remote.open_bytes(path).read(), list(counting.requests)))
    assert seen == [(b"1", ["a", "absent", "b"]), (b"22", ["a", "absent", "b"])]
    assert remote.open_bytes(paths[0]).read() == b"1"
    assert counting.requests[3:] == ["a"]
    with remote.fetched(paths), pytest.raises(FileNotFoundError):
        remote.open_bytes(paths[2])


@pytest.mark.parametrize(("fails", "works"), [(3, True), (4, False)])
def test_a_request_that_fails_is_made_again(counting, monkeypatch, fails, works):
    counting.fails = fails
    monkeypatch.setattr(Counting, "_open", lambda *_, **__: (_ for _ in ()).throw(OSError(5, "the store is busy")))
    if works:
        assert remote.open_bytes(Path("counting://a")).read() == b"1"
        assert len(counting.requests) == 4
    else:
        with pytest.raises(OSError, match="the store is busy"):
            remote.open_bytes(Path("counting://a"))
