"""An S3 bucket: listed, read and written, without credentials, while requests fail, and without a wait per file."""

import json
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from PIL import Image

from densecal.io import urls
from tests.evaluation.test_folders import make_pair, to_levels
from tests.io.s3_server import proxy_before
from tests.onnx_files import linear
from tests.running import run

s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed: pip install 'densecal[remote]'")
server = pytest.importorskip("moto.server", reason="moto is not installed: pip install 'moto[s3]' flask flask-cors")

FILES = 24


@pytest.fixture(scope="module")
def moto():
    """The port of an S3 server."""
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    yield running.get_host_and_port()[1]
    running.stop()


@pytest.fixture
def aws(monkeypatch, tmp_path):
    """Credentials of nobody, and no other source of them."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no-credentials"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return monkeypatch


def use(aws, port: int) -> None:
    aws.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    forget()


def forget() -> None:
    """Open new connections, list again."""
    s3fs.S3FileSystem.clear_instance_cache()
    fsspec.config.conf.pop("s3", None)


@pytest.fixture
def bucket(moto, aws, tmp_path):
    """The same maps, masks and photographs in a bucket and on disk."""
    for name in ("maps", "masks", "photos"):
        (tmp_path / name).mkdir()
    for i in range(FILES):
        p, y = make_pair(i, (20, 30))
        if i % 4 == 3:
            np.save(tmp_path / "maps" / f"im{i:02}.npy", p)
        else:
            Image.fromarray(to_levels(p)).save(tmp_path / "maps" / f"im{i:02}.png")
        Image.fromarray(y).save(tmp_path / "masks" / f"im{i:02}.png")
        Image.fromarray(np.repeat(to_levels(p)[:, :, None], 3, 2)).save(tmp_path / "photos" / f"im{i:02}.png")
    use(aws, moto)
    store = s3fs.S3FileSystem()
    name = f"bucket-{time.time_ns()}"
    store.mkdir(name)
    for folder in ("maps", "masks", "photos"):
        store.put(str(tmp_path / folder), f"{name}/{folder}", recursive=True)
    forget()
    return f"s3://{name}"


def evaluated(folder: str | Path, out: Path) -> dict:
    code, _, err = run("evaluate", f"{folder}/maps", f"{folder}/masks", "--json", out, "--workers", 1, "--name", "m",
                       "--dataset", "d")  # fmt: skip
    assert code == 0, err
    return json.loads(out.read_text())


def test_a_bucket_is_listed_and_read(bucket, tmp_path):
    assert evaluated(bucket, tmp_path / "s3.json") == evaluated(tmp_path, tmp_path / "disk.json")


def test_results_and_maps_are_written_into_it(bucket, tmp_path):
    arguments = ["evaluate", f"{bucket}/maps", f"{bucket}/masks", "--workers", 1, "--json", f"{bucket}/out/a.json"]
    assert run(*arguments)[0] == 0
    assert json.loads(urls.open_bytes(Path(f"{bucket}/out/a.json")).read())["images"] == FILES
    assert run(*arguments)[0] == 0  # its own file is replaced
    urls.write_bytes(Path(f"{bucket}/out/a.json"), b"my notes")
    code, _, err = run(*arguments)
    assert (code, "did not write" in err) == (2, True)
    model = linear(tmp_path / "model.onnx", size=(20, 30))
    (tmp_path / "steps.yaml").write_text("scale: 255")
    for images, out in ((f"{bucket}/photos", f"{bucket}/new"), (tmp_path / "photos", tmp_path / "new")):
        common = ["--preprocess", tmp_path / "steps.yaml", "--out", out]
        assert run("predict", model, images, *common)[0] == 0
    written = [urls.open_bytes(path).read() for path, _ in urls.entries(Path(f"{bucket}/new"))]
    assert written == [path.read_bytes() for path in sorted((tmp_path / "new").iterdir())]
    assert len(written) == FILES


def test_a_file_of_any_size_is_read_whole(bucket, monkeypatch):
    monkeypatch.setattr(urls, "SMALL_BYTES", 1000)
    for size in (0, 1, 999, 1000, 1001, 5000):
        content = bytes(i % 251 for i in range(size))
        path = Path(f"{bucket}/any/{size}.bin")
        urls.write_bytes(path, content)
        with urls.open_bytes(path) as file:
            assert file.read() == content
        with urls.fetched([path]), urls.open_bytes(path) as file:
            assert file.read() == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda aws: [aws.delenv(f"AWS_{name}") for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")],
         "NoCredentialsError: Unable to locate credentials; expected credentials, where the client of the store"),
        (lambda aws: aws.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1"), "s3://"),
    ],
)  # fmt: skip
def test_what_is_missing_is_one_line(bucket, aws, change, message, monkeypatch):
    monkeypatch.setattr(urls, "_PAUSE_SECONDS", 0.0)
    change(aws)
    aws.setenv("AWS_MAX_ATTEMPTS", "1")
    forget()
    code, _, err = run("evaluate", f"{bucket}/maps", f"{bucket}/masks", "--workers", 1)
    assert (code, err.count("\n")) == (2, 1), err
    assert message in err


def test_a_bucket_that_is_not_there_is_one_line(bucket):
    code, _, err = run("evaluate", f"{bucket}-other/maps", f"{bucket}/masks", "--workers", 1)
    assert (code, err.count("\n")) == (2, 1), err
    assert "no such folder" in err


@pytest.mark.parametrize("drops", [False, True])
def test_a_bucket_that_fails_every_tenth_request_gives_the_same(moto, bucket, aws, tmp_path, drops):
    with proxy_before(moto, fails_every=10, drops=drops) as proxy:
        use(aws, proxy.port)
        whole = evaluated(tmp_path, tmp_path / "disk.json")
        for _ in range(3):
            forget()
            assert evaluated(bucket, tmp_path / "s3.json") == whole
        assert proxy.failed >= 3


@pytest.mark.slow
def test_a_slow_bucket_does_not_cost_a_wait_per_file(moto, bucket, aws, capsys):
    """At 20 ms per request, at least ten times the rate of opening the files one after the other."""
    command = [sys.executable, "-m", "tests.io.s3_server", str(moto)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proxy:
        use(aws, int(proxy.stdout.readline()))
        paths = [path for name in ("maps", "masks", "photos") for path, _ in urls.entries(Path(f"{bucket}/{name}"))]
        store = s3fs.S3FileSystem()
        # the proxy knows all answers from now on
        expected = [one_by_one(store, path) for path in paths]
        with urls.fetched(paths):
            assert [urls.open_bytes(path).read() for path in paths] == expected
        proxy.stdin.write("0.02\n")
        proxy.stdin.flush()
        proxy.stdout.readline()
        seconds = {"one by one": [], "ahead": []}
        for _ in range(3):
            start = time.perf_counter()
            assert [one_by_one(store, path) for path in paths] == expected
            seconds["one by one"].append(time.perf_counter() - start)
            start = time.perf_counter()
            again = urls.fetch_ahead(paths, lambda path: [path], len(paths))
            assert [urls.open_bytes(path).read() for path in again] == expected
            seconds["ahead"].append(time.perf_counter() - start)
        proxy.stdin.close()
    ratio = min(seconds["one by one"]) / min(seconds["ahead"])
    with capsys.disabled():
        print(f"\n{len(paths)} files at 20 ms, seconds: {seconds}, {ratio:.1f} times as fast")
    assert ratio >= 10


def one_by_one(store, path: Path) -> bytes:
    """Read a file as it was read before files were fetched ahead."""
    store.dircache.clear()
    with store.open(urls.url(path), "rb") as file:
        return file.read()
