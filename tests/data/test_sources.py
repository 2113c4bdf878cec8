import multiprocessing
import os
import pickle
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from densecal.data.sources import MAX_MEMBER_BYTES, Source, open_source
from densecal.errors import InputError

from . import samples

_shared: Source
NAMES = ["b", "a", "c.d", "ü ß", 'it\'s "x"', "日本"]


def assert_has_all(source: Source, names: list[str]) -> None:
    assert source.names == sorted(names)
    for i, name in enumerate(names):
        np.testing.assert_array_equal(source.image(name), samples.image(i))
        np.testing.assert_array_equal(source.mask(name), samples.mask(i))


def test_names_may_hold_any_character(tmp_path: Path) -> None:
    root = tmp_path / "a 'quoted' \"földer\" %s {x}"
    images, masks = samples.folders(root, NAMES)
    source = open_source(str(images), str(masks))
    assert source.has_masks
    assert_has_all(source, NAMES)


def test_a_folder_of_images_and_masks_folders_needs_no_second_path(tmp_path: Path) -> None:
    samples.folders(tmp_path, NAMES)
    assert_has_all(open_source(tmp_path), NAMES)


def test_images_alone_are_a_source_without_masks(tmp_path: Path) -> None:
    images, _ = samples.folders(tmp_path, ["a"])
    source = open_source(images)
    assert not source.has_masks
    with pytest.raises(InputError, match=r"a\.png: an image without a mask"):
        source.mask("a")


def test_hidden_files_other_suffixes_and_subfolders_are_ignored(tmp_path: Path) -> None:
    images, masks = samples.folders(tmp_path, ["a"])
    (images / "._a.png").write_bytes(b"finder")
    (images / "Thumbs.db").write_bytes(b"explorer")
    (images / "folder.png").mkdir()
    assert open_source(images, masks).names == ["a"]


def test_one_image_is_a_source(tmp_path: Path) -> None:
    samples.save(samples.image(0), tmp_path / "photo.PNG")
    source = open_source(tmp_path / "photo.PNG")
    assert source.names == ["photo"]
    np.testing.assert_array_equal(source.image("photo"), samples.image(0))
    with pytest.raises(InputError, match="no masks beside a single image"):
        open_source(tmp_path / "photo.PNG", tmp_path)


def test_an_error_about_missing_images_names_the_subfolders(tmp_path: Path) -> None:
    for city in ("Aachen", "Bonn", "Celle", "Dachau"):
        samples.save(samples.image(0), tmp_path / "images" / city / "x.png")
    with pytest.raises(InputError, match=r"no image files, but subfolders \(Aachen, Bonn, Celle, \.\.\.\);"):
        open_source(tmp_path / "images")


def test_missing_partners_on_both_sides_are_counted_and_the_first_five_named(tmp_path: Path) -> None:
    images, masks = samples.folders(tmp_path, [f"n{i}" for i in range(9)])
    for i in range(7):
        (masks / f"n{i}.png").unlink()
    (images / "n8.png").unlink()
    with pytest.raises(InputError) as caught:
        open_source(images, masks)
    text = str(caught.value)
    assert "7 images without a mask (n0, n1, n2, n3, n4, ...)" in text
    assert "1 mask without an image (n8)" in text


def test_two_files_of_one_name_are_an_error_that_names_both(tmp_path: Path) -> None:
    images, masks = samples.folders(tmp_path, ["a"])
    samples.save(samples.image(1), images / "a.jpg")
    with pytest.raises(InputError, match=r"a\.png: the same name as .*a\.jpg"):
        open_source(images, masks)


@pytest.mark.parametrize("which", ["images", "masks"])
def test_a_missing_folder_is_named(tmp_path: Path, which: str) -> None:
    images, masks = samples.folders(tmp_path, ["a"])
    paths = {"images": images, "masks": masks} | {which: tmp_path / "nowhere"}
    with pytest.raises(InputError, match="nowhere: does not exist"):
        open_source(paths["images"], paths["masks"])


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no image files"):
        open_source(tmp_path)


def test_a_truncated_image_is_named_when_read(tmp_path: Path) -> None:
    images, masks = samples.folders(tmp_path, ["a", "b"], ".jpg")
    data = (images / "b.jpg").read_bytes()
    (images / "b.jpg").write_bytes(data[: len(data) // 2])
    source = open_source(images, masks)
    source.image("a")
    with pytest.raises(InputError, match=r"b\.jpg"):
        source.image("b")


def test_several_zips_are_one_source_and_are_not_written_to(tmp_path: Path) -> None:
    first = samples.zipped(tmp_path / "one zip.zip", NAMES[:3])
    second = samples.zipped(tmp_path / "zwei.zip", NAMES[3:], first=3)
    before = [(p.read_bytes(), p.stat().st_mtime_ns) for p in (first, second)]
    assert_has_all(open_source([first, second]), NAMES)
    assert [(p.read_bytes(), p.stat().st_mtime_ns) for p in (first, second)] == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one zip.zip", "zwei.zip"]


def test_a_zip_without_masks_is_a_source_without_masks(tmp_path: Path) -> None:
    source = open_source(samples.zipped(tmp_path / "t.zip", ["a"], masks=False))
    assert source.names == ["a"]
    assert not source.has_masks


def test_zip_members_outside_images_and_masks_are_ignored(tmp_path: Path) -> None:
    path = samples.zipped(tmp_path / "x.zip", ["a"])
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../images/evil.png", b"")
        archive.writestr("__MACOSX/images/._a.png", b"")
        archive.writestr("readme.txt", b"")
        archive.writestr("images/deep/b.png", b"")
    assert open_source(path).names == ["a"]


def test_bad_zips_are_named(tmp_path: Path) -> None:
    path = samples.zipped(tmp_path / "cut.zip", ["a"])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(InputError, match=r"cut\.zip"):
        open_source(path)
    with zipfile.ZipFile(tmp_path / "flat.zip", "w") as archive:
        archive.writestr("a.png", samples.encoded(samples.image(0)))
    with pytest.raises(InputError, match=r"flat\.zip: no members images/NAME"):
        open_source(tmp_path / "flat.zip")
    with pytest.raises(InputError, match="not a zip file"):
        open_source([samples.zipped(tmp_path / "good.zip", ["a"]), tmp_path])
    with pytest.raises(InputError, match="no mask folder"):
        open_source(tmp_path / "good.zip", tmp_path)


def test_a_damaged_or_huge_zip_member_is_named(tmp_path: Path) -> None:
    path = samples.zipped(tmp_path / "x.zip", ["a", "b"])
    source = open_source(path)
    data = bytearray(path.read_bytes())
    at = data.index(samples.encoded(samples.image(1))) + 40
    data[at] ^= 0xFF
    path.write_bytes(data)
    source.image("a")
    with pytest.raises(InputError, match=r"x\.zip:images/b\.png: unreadable"):
        source.image("b")
    with (
        zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("images/a.png", "w") as member,
    ):
        for _ in range(MAX_MEMBER_BYTES // 2**24 + 1):
            member.write(bytes(2**24))
    with pytest.raises(InputError, match="at most"):
        open_source(tmp_path / "bomb.zip").image("a")


def _sums(names: list[str]) -> list[int]:
    return [int(_shared.image(name).sum()) for name in names]


def test_zips_are_read_by_threads_and_forked_processes_at_once(tmp_path: Path) -> None:
    global _shared  # inherited by the fork, open files and all
    names = [f"{i:02d}" for i in range(40)]
    _shared = open_source(samples.zipped(tmp_path / "x.zip", names))
    expected = [int(samples.image(i).sum()) for i in range(40)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(_sums, [names] * 8)) == [expected] * 8
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(_sums, [names] * 30, chunksize=1) == [expected] * 30
    assert pickle.loads(pickle.dumps(_shared)).image("07").sum() == expected[7]


def test_list_files_name_pairs_relative_to_themselves(tmp_path: Path) -> None:
    samples.folders(tmp_path / "set", NAMES)
    lines = [f"images/{n}.png\tmasks/{n}.png" for n in NAMES]
    (tmp_path / "set" / "list.txt").write_bytes(("\ufeff" + "\r\n".join(lines) + "\r\n\r\n").encode())
    assert_has_all(open_source(tmp_path / "set" / "list.txt"), NAMES)


def test_list_files_split_at_the_space_between_two_existing_files(tmp_path: Path) -> None:
    samples.folders(tmp_path, ["my photo 1", "b"])
    text = f"images/my photo 1.png masks/my photo 1.png\n{tmp_path}/images/b.png masks/b.png\n"
    (tmp_path / "list.txt").write_text(text)
    assert_has_all(open_source(tmp_path / "list.txt"), ["my photo 1", "b"])
    (tmp_path / "images.txt").write_text("images/my photo 1.png\nimages/b.png")
    source = open_source(tmp_path / "images.txt")
    assert source.names == ["b", "my photo 1"]
    assert not source.has_masks


def test_list_files_may_hold_names_that_are_not_utf8(tmp_path: Path) -> None:
    samples.folders(tmp_path, ["a"])
    odd = os.fsdecode(b"caf\xe9")
    os.rename(tmp_path / "images" / "a.png", tmp_path / "images" / f"{odd}.png")
    (tmp_path / "list.txt").write_bytes(b"images/caf\xe9.png\tmasks/a.png\n")
    assert open_source(tmp_path / "list.txt").names == [odd]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("images/a.png masks/x.png", r"list\.txt line 2: no file '.*masks/x\.png'"),
        ("images/x.png", r"list\.txt line 2: no file '.*images/x\.png'"),
        ("images/x y.png\tmasks/a.png", r"list\.txt line 2: no file '.*images/x y\.png'"),
        ("images/a.png\tmasks/a.png", "the same name as"),
        ("images/b.png", r"1 image without a mask \(b\)"),
    ],
)
def test_bad_list_lines_are_named(tmp_path: Path, line: str, message: str) -> None:
    samples.folders(tmp_path, ["a", "b"])
    (tmp_path / "list.txt").write_text(f"images/a.png masks/a.png\n{line}\n")
    with pytest.raises(InputError, match=message):
        open_source(tmp_path / "list.txt")


def test_fingerprints_change_with_the_file_and_only_then(tmp_path: Path) -> None:
    images, masks = samples.folders(tmp_path, ["a", "b"])
    source = open_source(images, masks)
    before = source.fingerprint("a"), source.fingerprint("b")
    assert (source.fingerprint("a"), source.fingerprint("b")) == before
    os.utime(masks / "a.png", ns=(1, 1))
    assert source.fingerprint("a") != before[0]
    assert source.fingerprint("b") == before[1]


def test_fingerprints_of_zip_members_do_not_depend_on_where_the_zip_lies(tmp_path: Path) -> None:
    path = samples.zipped(tmp_path / "x.zip", ["a"])
    before = open_source(path).fingerprint("a")
    path = path.rename(tmp_path / "y.zip")
    assert open_source(path).fingerprint("a") == before
    other = samples.zipped(tmp_path / "z.zip", ["a"], first=1)
    assert open_source(other).fingerprint("a") != before
