import errno
import fcntl
import json
import logging
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from densecal.data import packed as packed_module
from densecal.data.decoding import Reading, decode_all
from densecal.data.packed import Packed, open_packed, pack
from densecal.data.sources import Source, open_source
from densecal.errors import InputError

from . import samples

NAMES = ["a", "b", "ü x", "d", "e"]


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return open_source(*samples.folders(tmp_path / "set", NAMES))


def left_over(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_samples_are_resized_as_pillow_does_it(tmp_path: Path, source: Source) -> None:
    packed = pack(source, ["d", "a"], 16, tmp_path / "cache")
    assert packed.names == ["d", "a"]
    assert packed.original_sizes == [(30, 40), (30, 40)]
    assert packed.warnings == []
    for i, seed in enumerate((3, 0)):
        for got, original in ((packed.images[i], samples.image(seed)), (packed.masks[i], samples.mask(seed))):
            wanted = Image.fromarray(original).resize((16, 16), Image.Resampling.BILINEAR)
            np.testing.assert_array_equal(got, np.asarray(wanted))
    assert 0 < np.mean((packed.masks > 0) & (packed.masks < 255)) < 0.5, "soft at the borders alone"
    with pytest.raises(ValueError, match="read-only"):
        packed.images[0] = 0


def test_the_cache_is_two_data_files_and_a_manifest_with_their_hashes(tmp_path: Path, source: Source) -> None:
    pack(source, NAMES, 16, tmp_path / "new" / "cache")
    assert left_over(tmp_path / "new") == ["cache"]
    assert left_over(tmp_path / "new" / "cache") == ["images.u8", "manifest.json", "masks.u8"]
    again = open_packed(tmp_path / "new" / "cache", verify=True)
    assert again.names == NAMES
    assert again.images.shape == (5, 16, 16, 3)
    assert again.masks.shape == (5, 16, 16)


def test_batches_are_gathered_channels_first(tmp_path: Path, source: Source) -> None:
    packed = pack(source, NAMES, 16, tmp_path / "cache")
    for indices in ([3, 0, 3], np.array([3, 0, 3]), torch.tensor([3, 0, 3])):
        images, masks = packed.batch(indices)
        assert images.dtype == masks.dtype == torch.uint8
        assert images.is_contiguous(memory_format=torch.channels_last)
        np.testing.assert_array_equal(images.numpy(), packed.images[[3, 0, 3]].transpose(0, 3, 1, 2))
        np.testing.assert_array_equal(masks.numpy(), packed.masks[[3, 0, 3]])
        images.fill_(0)  # a copy, not the map
    for bad in ([5], [-1]):
        with pytest.raises(IndexError, match="expected 0 to 4"):
            packed.batch(bad)


def test_batches_from_a_device_are_the_same(tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack(source, NAMES, 16, tmp_path / "cache")
    expected = packed.batch([4, 1])
    assert not packed.keep_on_device("cpu")
    copies = [packed_module._copy_to(data, torch.device("cpu")) for data in (packed.images, packed.masks)]
    monkeypatch.setattr(packed, "_on_device", tuple(copies))
    for got, wanted in zip(packed.batch([4, 1]), expected, strict=True):
        assert torch.equal(got, wanted)
        assert got.stride() == wanted.stride()


def test_a_cache_that_does_not_fit_stays_where_it_is(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(source, NAMES, 16, tmp_path / "cache")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 5 * 16 * 16 * 4 - 1, 1 << 40))
    assert not packed.keep_on_device("cuda")
    packed.batch([0])


def test_a_cache_of_half_of_the_free_memory_is_moved_to_the_device_piece_by_piece(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(source, NAMES, 16, tmp_path / "cache")
    expected = packed.batch([4, 1])
    copy = packed_module._copy_to
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 5 * 16 * 16 * 4, 1 << 40))
    monkeypatch.setattr(packed_module, "_copy_to", lambda data, device: copy(data, torch.device("cpu")))
    for piece in (1, 2 * 16 * 16 * 3, 1 << 26):  # of one sample, of two, of all
        monkeypatch.setattr(packed_module, "_PIECE_BYTES", piece)
        assert packed.keep_on_device("cuda")
        for got, wanted in zip(packed.batch([4, 1]), expected, strict=True):
            assert torch.equal(got, wanted)


def test_an_empty_batch_holds_nothing(tmp_path: Path, source: Source) -> None:
    images, masks = pack(source, NAMES, 16, tmp_path / "cache").batch([])
    assert images.shape == (0, 3, 16, 16)
    assert masks.shape == (0, 16, 16)


def test_a_pickled_cache_is_opened_again_and_not_copied(tmp_path: Path, source: Source) -> None:
    packed = pack(source, NAMES, 256, tmp_path / "cache")
    data = pickle.dumps(packed)
    assert len(data) < 5000
    np.testing.assert_array_equal(pickle.loads(data).images, packed.images)
    pack(source, NAMES[:3], 256, tmp_path / "cache")
    with pytest.raises(InputError, match="another cache"):
        pickle.loads(data)
    assert packed.images[4].any(), "what is open stays readable"


def test_a_pickled_cache_is_opened_without_reading_its_data(tmp_path: Path, source: Source) -> None:
    data = pickle.dumps(pack(source, NAMES, 16, tmp_path / "cache"))
    with (tmp_path / "cache" / packed_module.IMAGES).open("r+b") as stream:
        stream.write(b"\x01\x02\x03")  # hashing the data would notice, and takes minutes for a large cache
    assert pickle.loads(data).images[0, 0, 0].tolist() == [1, 2, 3]


def test_a_pickled_cache_is_not_taken_for_one_of_the_same_samples_with_other_content(
    tmp_path: Path, source: Source
) -> None:
    data = pickle.dumps(pack(source, NAMES, 16, tmp_path / "cache"))
    _touch(tmp_path)
    assert pack(open_source(tmp_path / "set"), NAMES, 16, tmp_path / "cache").rebuilt
    with pytest.raises(InputError, match="another cache"):
        pickle.loads(data)


def test_a_warm_cache_is_not_built_again(
    tmp_path: Path, source: Source, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pack(source, NAMES, 16, tmp_path / "cache").rebuilt == "does not exist"
    monkeypatch.setattr(packed_module, "decode_all", None)
    packed = pack(source, NAMES, 16, tmp_path / "cache", verify=True)
    assert packed.rebuilt == ""
    assert caplog.records == []


def test_an_empty_folder_is_filled_without_a_warning(
    tmp_path: Path, source: Source, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").mkdir()
    assert pack(source, NAMES, 16, tmp_path / "cache").rebuilt == "no manifest"
    assert caplog.records == []


def test_blocks_are_checked_always_and_the_hash_of_all_when_asked_for(tmp_path: Path, source: Source) -> None:
    pack(source, NAMES, 16, tmp_path / "cache")
    _flip(tmp_path)
    with pytest.raises(InputError, match=r"masks\.u8 is damaged"):
        open_packed(tmp_path / "cache")
    with pytest.raises(InputError, match=r"masks\.u8 does not have the hash"):
        open_packed(tmp_path / "cache", verify=True)


def test_images_of_one_pixel_can_be_packed(tmp_path: Path, source: Source) -> None:
    packed = pack(source, NAMES, 1, tmp_path / "cache")
    assert packed.images.shape == (5, 1, 1, 3)
    assert packed.masks.shape == (5, 1, 1)


def _touch(tmp_path: Path) -> None:
    samples.save(samples.mask(7), tmp_path / "set" / "masks" / "a.png")


def _truncate(tmp_path: Path, file: str = "images.u8") -> None:
    os.truncate(tmp_path / "cache" / file, 100)


def _flip(tmp_path: Path, file: str = "masks.u8") -> None:
    with (tmp_path / "cache" / file).open("r+b") as stream:
        stream.seek(77)
        stream.write(b"\x55")


def _edit(tmp_path: Path, **changes: object) -> None:
    path = tmp_path / "cache" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (_touch, "source files that have changed"),
        (_truncate, "images.u8 has 100 bytes"),
        (lambda p: _truncate(p, "masks.u8"), "masks.u8 has 100 bytes"),
        (_flip, "masks.u8 does not have the hash"),
        (lambda p: _flip(p, "images.u8"), "images.u8 does not have the hash"),
        (lambda p: (p / "cache" / "masks.u8").unlink(), "incomplete"),
        (lambda p: (p / "cache" / "manifest.json").unlink(), "no manifest"),
        (lambda p: (p / "cache" / "manifest.json").write_text("{"), "unreadable manifest"),
        (lambda p: (p / "cache" / "manifest.json").write_text("[]"), "another kind"),
        (lambda p: _edit(p, version=99), "format version 99"),
        (lambda p: _edit(p, original_sizes=None), "a damaged manifest"),
    ],
)
def test_a_stale_or_damaged_cache_is_rebuilt_and_the_reason_is_given(
    tmp_path: Path, source: Source, damage: object, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    pack(source, NAMES, 16, tmp_path / "cache")
    damage(tmp_path)  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        packed = pack(source, NAMES, 16, tmp_path / "cache", verify=True)
    assert reason in packed.rebuilt
    assert reason in caplog.text
    expected = pack(source, NAMES, 16, tmp_path / "fresh")
    np.testing.assert_array_equal(packed.masks, expected.masks)
    assert pack(source, NAMES, 16, tmp_path / "cache", verify=True).rebuilt == ""
    assert left_over(tmp_path) == ["cache", "fresh", "set"]


@pytest.mark.parametrize(
    ("names", "size", "classes", "reason"),
    [
        (NAMES[:4], 16, 1, "other samples"),
        (NAMES[::-1], 16, 1, "other samples"),
        (NAMES, 8, 1, "size 16 (wanted 8)"),
        (NAMES, 16, 2, "classes 1 (wanted 2)"),
    ],
)
def test_another_request_is_another_cache(
    tmp_path: Path, source: Source, names: list[str], size: int, classes: int, reason: str
) -> None:
    pack(source, NAMES, 16, tmp_path / "cache")
    packed = pack(source, names, size, tmp_path / "cache", classes)
    assert packed.rebuilt == reason
    assert packed.images.shape == (len(names), size, size, 3)


def test_another_void_label_is_another_cache_of_classes_but_not_of_foreground(tmp_path: Path) -> None:
    images, masks = samples.folders(tmp_path / "set", ["a"])
    samples.save(np.zeros((30, 40), np.uint8), masks / "a.png")
    source = open_source(images, masks)
    for classes, reason in ((1, ""), (2, "ignore_index 255 (wanted 7)")):
        folder = tmp_path / str(classes)
        pack(source, ["a"], 16, folder, classes)
        assert pack(source, ["a"], 16, folder, classes, ignore_index=7).rebuilt == reason


def test_opening_anything_but_a_cache_is_an_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError, match="expected a cache"):
            open_packed(folder)


def test_grey_masks_are_counted_once_and_binarised_before_resizing(tmp_path: Path) -> None:
    images, masks = samples.folders(tmp_path / "set", NAMES)
    grey = np.linspace(0, 255, 30 * 40).reshape(30, 40).astype(np.uint8)
    for name in NAMES[:2]:
        samples.save(grey, masks / f"{name}.png")
    packed = pack(open_source(images, masks), NAMES, 16, tmp_path / "cache")
    assert packed.warnings == ["2 of 5 masks hold grey values, binarised at > 127 (a, b)"]
    assert open_packed(tmp_path / "cache").warnings == packed.warnings
    binary = Image.fromarray(np.where(grey > 127, 255, 0).astype(np.uint8))
    np.testing.assert_array_equal(packed.masks[0], binary.resize((16, 16), Image.Resampling.BILINEAR))


def test_five_of_the_grey_masks_and_of_the_foreign_files_are_named(tmp_path: Path) -> None:
    images, masks = samples.folders(tmp_path / "set", list("abcdefg"))
    for name in "bcdefg":
        samples.save(np.full((30, 40), 90, np.uint8), masks / f"{name}.png")
    source = open_source(images, masks)
    packed = pack(source, list("abcdefg"), 16, tmp_path / "cache")
    assert packed.warnings == ["6 of 7 masks hold grey values, binarised at > 127 (b, c, d, e, f)"]
    for name in "uvwxyz":
        (tmp_path / "cache" / name).touch()
    with pytest.raises(InputError, match=r"other files \(u, v, w, x, y\);"):
        pack(source, ["a"], 16, tmp_path / "cache")


def test_label_masks_keep_their_labels(tmp_path: Path) -> None:
    images, masks = samples.folders(tmp_path / "set", ["a"])
    labels = np.random.default_rng(0).choice(np.array([0, 3, 10, 11], np.uint8), (30, 40))
    samples.save(labels, masks / "a.png")
    source = open_source(images, masks)
    packed = pack(source, ["a"], 16, tmp_path / "cache", classes=11, ignore_index=11)
    wanted = Image.fromarray(labels).resize((16, 16), Image.Resampling.NEAREST)
    np.testing.assert_array_equal(packed.masks[0], wanted)
    assert packed.warnings == []
    with pytest.raises(InputError, match=r"a\.png: label 11; expected labels 0 to 10, or 255"):
        pack(source, ["a"], 16, tmp_path / "cache", classes=11)
    assert open_packed(tmp_path / "cache").classes == 11, "a failed rebuild leaves the old cache"


@pytest.mark.parametrize("workers", [1, 2])
def test_one_bad_file_is_named_and_nothing_is_left_behind(tmp_path: Path, workers: int) -> None:
    names = [f"{i:02d}" for i in range(40)]
    images, masks = samples.folders(tmp_path / "set", names, ".jpg")
    data = (images / "21.jpg").read_bytes()
    (images / "21.jpg").write_bytes(data[: len(data) // 2])
    source = open_source(images, masks)
    with pytest.raises(InputError, match=r"21\.jpg"):
        pack(source, names, 16, tmp_path / "cache", workers=workers)
    assert left_over(tmp_path) == ["set"]
    samples.save(samples.image(0, 20, 40), images / "21.jpg")
    with pytest.raises(InputError, match=r"21\.png: 40 x 30 pixels; expected 40 x 20 as in .*21\.jpg"):
        pack(open_source(images, masks), names, 16, tmp_path / "cache", workers=workers)
    assert left_over(tmp_path) == ["set"]


def test_requests_that_cannot_be_met_are_refused(tmp_path: Path, source: Source) -> None:
    with pytest.raises(InputError, match="'x', which is not in the source"):
        pack(source, ["a", "x"], 16, tmp_path / "cache")
    with pytest.raises(InputError, match="no samples"):
        pack(source, [], 16, tmp_path / "cache")
    with pytest.raises(InputError, match="an image without a mask"):
        pack(open_source(tmp_path / "set" / "images"), ["a"], 16, tmp_path / "cache")
    for wrong in ({"names": ["a", "a"]}, {"size": 0}, {"classes": 0}):
        arguments = {"names": ["a"], "size": 16, "classes": 1, **wrong}
        with pytest.raises(ValueError, match="expected"):
            pack(source, folder=tmp_path / "cache", **arguments)  # type: ignore[arg-type]


def test_a_folder_with_anything_else_in_it_is_never_replaced(tmp_path: Path, source: Source) -> None:
    pack(source, NAMES, 16, tmp_path / "cache")
    (tmp_path / "cache" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        pack(source, NAMES, 8, tmp_path / "cache")
    assert (tmp_path / "cache" / "thesis.tex").read_text() == "years of work"
    (tmp_path / "file").write_text("x")
    with pytest.raises(InputError, match="a file"):
        pack(source, NAMES, 8, tmp_path / "file")


def test_processes_write_the_same_bytes_and_report_progress(tmp_path: Path) -> None:
    names = [f"{i:02d}" for i in range(40)]
    source = open_source(samples.zipped(tmp_path / "set.zip", names))
    told: list[tuple[int, int]] = []
    pack(source, names, 16, tmp_path / "two", workers=2, progress=lambda _, *p: told.append(p))
    pack(source, names, 16, tmp_path / "one", workers=1)
    assert told == [(16, 40), (32, 40), (40, 40)]
    for file in ("images.u8", "masks.u8", "manifest.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


@pytest.mark.parametrize("workers", [1, 2])
def test_files_are_hashed_and_on_the_disk_before_the_last_sample_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    names = [f"{i:02d}" for i in range(40)]
    source = open_source(samples.zipped(tmp_path / "set.zip", names))
    synced: list[int] = []
    monkeypatch.setattr(packed_module, "_SYNC_BYTES", 16 * 16 * 16)
    monkeypatch.setattr(os, "fsync", lambda _: synced.append(told))
    told = 0

    def progress(_: str, done: int, __: int) -> None:
        nonlocal told
        told = done

    pack(source, names, 16, tmp_path / "cache", workers=workers, progress=progress)
    # images after each of three chunks, masks after the two that are full; at the end both and the manifest
    assert synced == [0, 0, 16, 16, 32, 40, 40, 40]
    open_packed(tmp_path / "cache", verify=True)


PACK = """
import sys, time
from densecal.data import open_source, pack
if __name__ == "__main__":
    root, workers, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    def progress(title, done, total):
        import multiprocessing
        print(*[p.pid for p in multiprocessing.active_children()], flush=True)
        time.sleep(pause)
    source = open_source(root + "/set")
    packed = pack(source, source.names, 16, root + "/cache", workers=workers, progress=progress)
    assert not {"torch", "scipy"} & set(sys.modules), "workers would pay for these imports"
    print("sum", int(packed.images.sum()))
"""


def start_packing(root: Path, workers: int, pause: float) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PACK, str(root), str(workers), str(pause)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


SLOW_START = """
import multiprocessing, os, sys, time
from pathlib import Path
from densecal.data.decoding import decode_all
multiprocessing.get_all_start_methods = lambda: ["spawn"]  # a fork server may import this once, for all processes
together = True
if __name__ == "__mp_main__":  # an import that ends when all four processes have come to it
    began = Path(sys.argv[1])
    (began / str(os.getpid())).touch()
    end = time.monotonic() + 60
    while not (together := len(os.listdir(began)) == 4) and time.monotonic() < end:
        time.sleep(0.01)

class Large:
    names = [str(i) for i in range(64)]
    def __init__(self):
        self.ballast = bytes(1 << 20)
    def run(self, start):
        return [together] * 16

if __name__ == "__main__":
    print(all(decode_all(Large(), workers=4)))
"""


def test_processes_start_at_the_same_time_however_much_they_are_given(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SLOW_START)
    (tmp_path / "began").mkdir()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path / "began")]
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert output == "True\n", "one waits for another's imports"


@pytest.mark.parametrize("problem", ["missing", "full"])
def test_no_room_for_temporary_files_is_one_clear_error(
    problem: str, tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(source, NAMES * 10, 8, 1, None, False)
    if problem == "missing":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match=r"TMPDIR: .*(nowhere|No space).*; expected .* workers=1 needs none"):
        decode_all(reading, workers=2)
    assert not list(tmp_path.glob("densecal-*"))
    assert len(decode_all(reading, workers=1)) == 50


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("stale", [False, True])
def test_processes_that_race_all_get_the_same_whole_cache(tmp_path: Path, stale: bool) -> None:
    names = [f"{i:02d}" for i in range(48)]
    source = open_source(*samples.folders(tmp_path / "set", names))
    if stale:
        pack(source, names, 8, tmp_path / "cache", workers=1)
    racers = [start_packing(tmp_path, workers=1, pause=0.2) for _ in range(4)]
    outputs = [racer.communicate(timeout=300)[0] for racer in racers]
    assert [racer.returncode for racer in racers] == [0] * 4
    packed = open_packed(tmp_path / "cache", verify=True)
    assert {output.splitlines()[-1] for output in outputs} == {f"sum {int(packed.images.sum())}"}
    assert left_over(tmp_path) == ["cache", "set"]


def test_a_killed_process_leaves_nothing_that_the_next_does_not_clear_up(tmp_path: Path) -> None:
    names = [f"{i:02d}" for i in range(64)]
    source = open_source(*samples.folders(tmp_path / "set", names))
    killed = start_packing(tmp_path, workers=2, pause=60.0)
    assert killed.stdout is not None
    workers = [int(pid) for pid in killed.stdout.readline().split()]
    assert len(workers) == 2
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    assert not (tmp_path / "cache").exists()
    abandoned, lock = sorted(tmp_path.glob(".cache.building-*"))
    assert lock.name == f"{abandoned.name}.lock"
    assert len(list(abandoned.glob("densecal-*/task"))) == 1, "what its processes read is cleared up with the rest"
    deadline = time.monotonic() + 200
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, workers)), "workers end with their parent"
    packed = pack(source, names, 16, tmp_path / "cache", workers=1)
    assert isinstance(open_packed(packed.folder, verify=True), Packed)
    assert left_over(tmp_path) == ["cache", "set"]


def test_a_build_that_goes_on_elsewhere_is_left_alone(tmp_path: Path) -> None:
    names = [f"{i:02d}" for i in range(48)]
    source = open_source(*samples.folders(tmp_path / "set", names))
    slow = start_packing(tmp_path, workers=1, pause=1.0)
    assert slow.stdout is not None
    slow.stdout.readline()
    packed = pack(source, names, 16, tmp_path / "cache", workers=1)
    winner = (tmp_path / "cache" / "images.u8").stat().st_ino
    output = slow.communicate(timeout=300)[0]
    assert slow.returncode == 0
    assert (tmp_path / "cache" / "images.u8").stat().st_ino == winner, "the second uses the first's"
    assert output.splitlines()[-1] == f"sum {int(packed.images.sum())}"
    assert left_over(tmp_path) == ["cache", "set"]


@contextmanager
def lock_held(folder: Path) -> Iterator[None]:
    """Hold a build folder's lock as another process would: a file that is opened twice is locked once."""
    handle = os.open(folder.with_name(f"{folder.name}.lock"), os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


def test_packing_does_not_wait_for_a_process_that_is_still_building(tmp_path: Path, source: Source) -> None:
    building = tmp_path / ".cache.building-elsewhere"
    building.mkdir()
    (building / "images.u8").write_bytes(b"half")
    packing = threading.Thread(target=pack, args=(source, NAMES, 16, tmp_path / "cache"), kwargs={"workers": 1})
    with lock_held(building):
        packing.start()
        packing.join(timeout=120)
        waited = packing.is_alive()
    packing.join()
    assert not waited
    assert (building / "images.u8").read_bytes() == b"half", "a living process's folder is left alone"
    assert len(open_packed(tmp_path / "cache", verify=True)) == len(NAMES)


def test_what_a_dead_process_left_is_removed_and_what_belongs_to_other_caches_is_not(
    tmp_path: Path, source: Source
) -> None:
    for name in (".cache.building-dead", ".cache2.building-x", ".cache", ".building-x", "cache.building-x"):
        (tmp_path / name).mkdir()
    pack(source, NAMES, 16, tmp_path / "cache")
    assert left_over(tmp_path) == [".building-x", ".cache", ".cache2.building-x", "cache", "cache.building-x", "set"]


def test_a_build_folder_is_locked_before_it_exists(
    tmp_path: Path, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise another process could take it for abandoned and remove it."""
    make, refused = Path.mkdir, []

    def make_when_locked(folder: Path, *arguments: object, **options: object) -> None:
        if folder.name.startswith(".cache.building-") and not folder.exists():
            with pytest.raises(BlockingIOError), lock_held(folder):
                pass
            refused.append(folder)
        make(folder, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "mkdir", make_when_locked)
    pack(source, NAMES, 16, tmp_path / "cache", workers=1)
    assert len(refused) == 1


def test_a_folder_is_locked_for_as_long_as_something_is_built_in_it(tmp_path: Path, source: Source) -> None:
    locked: list[bool] = []

    def progress(*_: int) -> None:
        (building,) = (path for path in tmp_path.glob(".cache.building-*") if path.is_dir())
        try:
            with lock_held(building):
                locked.append(False)
        except BlockingIOError:
            locked.append(True)

    pack(source, NAMES, 16, tmp_path / "cache", workers=1, progress=progress)
    assert locked == [True]


def test_a_finished_cache_takes_the_place_of_a_stale_one_but_not_of_anything_else(
    tmp_path: Path, source: Source
) -> None:
    def spoil(*_: int) -> None:
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "thesis.tex").write_text("years of work")

    with pytest.raises(InputError, match=r"other files \(thesis\.tex\)"):
        pack(source, NAMES, 16, tmp_path / "cache", workers=1, progress=spoil)
    assert (tmp_path / "cache" / "thesis.tex").read_text() == "years of work"
    assert left_over(tmp_path) == ["cache", "set"]

    def stale(*_: int) -> None:
        pack(source, NAMES[:2], 16, tmp_path / "other", workers=1)

    packed = pack(source, NAMES, 16, tmp_path / "other", workers=1, progress=stale)
    assert packed.names == open_packed(tmp_path / "other", verify=True).names == NAMES
    assert packed.folder == tmp_path / "other"


def test_a_damaged_cache_that_another_process_put_in_place_is_replaced_when_asked_to_verify(
    tmp_path: Path, source: Source
) -> None:
    def damaged(*_: int) -> None:
        pack(source, NAMES, 16, tmp_path / "cache", workers=1)
        _flip(tmp_path)

    pack(source, NAMES, 16, tmp_path / "cache", workers=1, verify=True, progress=damaged)
    open_packed(tmp_path / "cache", verify=True)


def test_a_disk_that_cannot_be_written_is_one_clear_error(tmp_path: Path, source: Source) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InputError, match="5,120 bytes free"):
            pack(source, NAMES, 16, tmp_path / "cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert left_over(tmp_path) == ["set"]


def test_a_warm_cache_of_ten_thousand_opens_in_well_under_a_second(tmp_path: Path) -> None:
    names = [f"{i:05d}" for i in range(10_000)]
    picture, answer = samples.encoded(samples.image(0, 2, 2)), samples.encoded(samples.mask(0, 2, 2))
    for kind, data in (("images", picture), ("masks", answer)):
        (tmp_path / "set" / kind).mkdir(parents=True)
        (tmp_path / kind).write_bytes(data)
        for name in names:
            os.link(tmp_path / kind, tmp_path / "set" / kind / f"{name}.png")
    pack(open_source(tmp_path / "set"), names, 2, tmp_path / "cache", workers=1)
    started_at = time.process_time()
    packed = pack(open_source(tmp_path / "set"), names, 2, tmp_path / "cache")
    assert time.process_time() - started_at < 1.0
    assert packed.rebuilt == ""
