"""Parts of an evaluation: however the images are cut, merging gives the bytes of one call over all of them."""

import dataclasses
import hashlib
import json
import pickle
import random
import shutil
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import densecal.evaluation.image_sums as image_sums
import densecal.evaluation.totals as totals
import densecal.metrics.sketch as sketch_module
from densecal.data.pairs import find_pairs
from densecal.errors import InputError
from densecal.evaluation.folders import compute, evaluate, evaluate_shared, score_all
from densecal.evaluation.partial import Partial, merge_partials, pack_partial, read_partial, write_partial
from densecal.evaluation.record import SkippedFile
from densecal.evaluation.totals import Total
from densecal.evaluation.worker import Part, Settings, score_pairs
from densecal.io.atomic import write_json
from densecal.io.groups import Groups
from densecal.metrics.cost import Prices
from densecal.metrics.overlap import MEANS
from densecal.metrics.poisson import PoissonTable
from densecal.runtime.progress import silent
from densecal.runtime.sharding import Processes
from tests.adversarial.common import assert_one_line, densecal

IMAGES = 53
KINDS = ("uint8", "uint16", "float", "mixed", "classes", "void")
GROUPS = Groups("^[a-d]")


def write_images(folder: Path, kind: str) -> tuple[Path, Path]:
    """Write maps of a kind and their masks, with names whose order is not that of writing."""
    rng = np.random.default_rng(5)
    for name in ("maps", "masks"):
        (folder / name).mkdir(parents=True)
    for i in range(IMAGES):
        name = f"{'abcd'[i % 4]}{i * 31 % IMAGES}"
        p = rng.random((7, 9)) ** rng.uniform(0.3, 3)
        mask = np.where(rng.random(p.shape) < p, 255, 0).astype(np.uint8)
        dtype = ("uint8", "uint16", "float")[i % 3] if kind in ("mixed", "void") else kind
        if kind == "classes":
            values = rng.dirichlet((1, 1, 1), p.shape).transpose(2, 0, 1)
            mask = rng.integers(0, 3, p.shape).astype(np.uint8)
        elif dtype == "float":
            values = p.astype(np.float32)
        else:
            values = np.rint(p * np.iinfo(dtype).max).astype(dtype)
        if kind == "void":
            mask[rng.random(p.shape) < (1.0 if i == 6 else 0.2)] = 100  # one image has nothing but void pixels
        np.save(folder / "maps" / f"{name}.npy", values)
        Image.fromarray(mask).save(folder / "masks" / f"{name}.png")
    return folder / "maps", folder / "masks"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Folders of maps and masks by kind."""
    folder = tmp_path_factory.mktemp("images")
    return {kind: write_images(folder / kind, kind) for kind in KINDS}


def settings_of(kind: str, full: bool) -> Settings:
    return Settings(
        full=full, classes=3 if kind == "classes" else None, ignore_index=100 if kind == "void" else None
    )  # fmt: skip


def cut(folders: tuple[Path, Path], how: Settings, groups: Groups | None, count: int, rng: random.Random):
    """Score images in parts, at random and unequal; return the parts in another order."""
    pairs, _ = find_pairs(*folders)
    owner = [rng.randrange(count) for _ in pairs]
    parts = []
    for number in range(count):
        own = [pair for pair, o in zip(pairs, owner, strict=True) if o == number]
        total, _ = score_all(own, how, 1, False, silent, groups=groups)
        parts.append(Partial("m", "d", total, ()))
    rng.shuffle(parts)
    return parts


def merge(folder: Path, parts: list[Partial]) -> Partial:
    files = [folder / f"{number}.sketch" for number in range(len(parts))]
    for file, part in zip(files, parts, strict=True):
        write_partial(file, part)
    return merge_partials(files)


def json_bytes(folder: Path, record) -> bytes:
    write_json(folder / "record.json", record.to_json())
    return (folder / "record.json").read_bytes()


def assert_same(folder: Path, folders, how: Settings, groups: Groups | None, count: int, rng: random.Random) -> None:
    whole = evaluate(*folders, settings=how, name="m", dataset="d", groups=groups)
    merged = compute(merge(folder, cut(folders, how, groups, count, rng)), "parts", "parts")
    assert json_bytes(folder, merged.record) == json_bytes(folder, whole.record)
    # to the last bit, which ten digits in the JSON would hide
    assert repr(merged.record) == repr(whole.record)
    assert merged.stems == whole.stems
    assert np.array_equal(merged.rows, whole.rows)


CASES = [
    *((kind, False, count) for kind, count in zip(KINDS, (3, 7, 3, 7, 3, 7), strict=True)),
    ("float", True, 7), ("mixed", True, 3), ("classes", True, 7),
]  # fmt: skip
"""Kind of maps, whether there are too many float pixels to keep each, number of parts."""


@pytest.mark.parametrize(("kind", "binned", "count"), CASES)
@pytest.mark.parametrize(("full", "groups"), [(True, None), (False, GROUPS)])
def test_merged_parts_give_the_bytes_of_one_call(images, tmp_path, monkeypatch, kind, binned, count, full, groups):
    if binned:  # in all, but not in every part
        monkeypatch.setattr(sketch_module, "EXACT_PIXELS", 600)
    rng = random.Random(f"{kind} {binned}")
    assert_same(tmp_path, images[kind], settings_of(kind, full), groups, count, rng)


@pytest.mark.parametrize("kind", ["uint8", "mixed", "void"])
def test_maps_have_the_same_figures_however_many_are_scored_together(images, monkeypatch, kind):
    how = dataclasses.replace(settings_of(kind, True), prices=Prices(2.0, 1.0))
    expected = repr(evaluate(*images[kind], settings=how).record)
    for most in (1, 5):
        monkeypatch.setattr("densecal.evaluation.level_maps._MOST_WAITING", most)
        monkeypatch.setattr("densecal.metrics.segmentation.PENDING_MAPS", most)
        assert repr(evaluate(*images[kind], settings=how).record) == expected


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_part_stays_the_same_when_it_is_sent(images, kind, full):
    how = dataclasses.replace(settings_of(kind, full), prices=Prices(2.0, 1.0), entropy=kind != "classes")
    part = score_pairs(find_pairs(*images[kind])[0], how, False)
    records = []
    for own in (pickle.loads(pickle.dumps(part)), part):
        total = Total(how)
        total.add(own)
        records.append(repr(total.record("m", "d")))
    assert records[0] == records[1]


@pytest.mark.parametrize(("kind", "groups"), [("uint8", None), ("void", GROUPS), ("classes", None)])
def test_past_a_limit_sums_of_images_give_the_figures_of_all_of_them(images, monkeypatch, kind, groups):
    how = dataclasses.replace(settings_of(kind, True), prices=Prices(2.0, 1.0))
    monkeypatch.setattr(totals, "MOST_KEPT", IMAGES)
    kept = evaluate(*images[kind], settings=how, groups=groups)
    assert len(kept.rows) == IMAGES
    monkeypatch.setattr(totals, "MOST_KEPT", IMAGES - 1)
    summed = evaluate(*images[kind], settings=how, groups=groups)
    assert (summed.stems, len(summed.rows)) == ([], 0)
    table = PoissonTable(10)
    table.add(kept.stems if groups is None else groups.of(kept.stems), kept.rows)
    a, b = summed.record, kept.record
    expected = table.intervals()
    from_folds = {name: ends for name, ends in b.calibration.ci.items() if name not in expected}
    assert from_folds.keys() > {"smece", "tace", "nll_calibration"}
    assert {name: a.calibration.ci[name] for name in expected} == expected
    assert all(b.calibration.ci[name] != ends for name, ends in expected.items())
    for name, ends in from_folds.items():
        assert a.calibration.ci[name] == pytest.approx(ends, abs=1e-9)
    assert a.calibration.figures == pytest.approx(b.calibration.figures, abs=1e-9, nan_ok=True)
    assert {**a.segmentation, **dict.fromkeys(MEANS)} == {**b.segmentation, **dict.fromkeys(MEANS)}
    assert [a.segmentation[name] for name in MEANS] == pytest.approx([b.segmentation[name] for name in MEANS], abs=1e-9)
    # 52 images: studentised intervals and Poisson's differ by a few per cent of their width
    assert np.ptp([*a.segmentation_ci.values()], axis=1) == pytest.approx(
        np.ptp([*b.segmentation_ci.values()], axis=1), rel=0.2 if groups is None else 0.7
    )
    assert dataclasses.astuple(a.joint)[:2] == dataclasses.astuple(b.joint)[:2]
    assert dataclasses.astuple(a.joint)[2:] == pytest.approx(dataclasses.astuple(b.joint)[2:], abs=1e-9)
    ours, theirs = (record.reliability.consistency for record in (a, b))
    assert (ours.ece, ours.ece_high) == pytest.approx((theirs.ece, theirs.ece_high), rel=0.1 if groups is None else 0.6)
    assert ours.low == pytest.approx(theirs.low, abs=0.03 if groups is None else 0.1, nan_ok=True)
    assert (a.images, a.pixels, a.groups) == (b.images, b.pixels, b.groups)
    same = ("thresholds", "curves", "logits", "repair")
    assert [getattr(a, name) for name in same] == [getattr(b, name) for name in same]
    assert (a.cases, a.regions, [cost.ci for cost in a.costs]) == (None, (), [None] * len(b.costs))
    assert [dataclasses.replace(cost, ci=None) for cost in b.costs] == list(a.costs)
    assert "more than 52 images, of which sums are kept: no figures of cases and regions" in " ".join(a.warnings)
    assert ("from 4 groups of so many images" in " ".join(a.warnings)) == (groups is not None)


@pytest.mark.parametrize(
    ("kind", "count", "limit", "groups"),
    [("mixed", 1, 52, None), ("void", 3, 52, GROUPS), ("float", 7, 20, None), ("mixed", 50, 1, GROUPS),
     ("classes", 7, 3, None)],
)  # fmt: skip
def test_past_a_limit_no_cut_and_no_order_changes_a_bit(images, tmp_path, monkeypatch, kind, count, limit, groups):
    """Every part below the limit, some, or none."""
    monkeypatch.setattr(totals, "MOST_KEPT", limit)
    assert_same(tmp_path, images[kind], settings_of(kind, True), groups, count, random.Random(limit))


def test_past_a_limit_processes_write_the_bytes_of_one(images, monkeypatch):
    """Each of three processes is below it."""
    monkeypatch.setattr(totals, "MOST_KEPT", 40)
    monkeypatch.setattr("densecal.evaluation.folders.CHUNK", 5)
    sent = []

    class Gathering(Processes):
        def gather(self, value):
            sent.append(pickle.dumps(value))
            return [pickle.loads(sums) for sums in sent[-1:] + sent[:-1]] if self.first else []

    for rank in (1, 2, 0):
        shared = evaluate_shared(*images["mixed"], groups=GROUPS, processes=Gathering(rank, 3))
    assert shared.record == evaluate(*images["mixed"], groups=GROUPS).record
    assert shared.record.groups == 4


def test_images_of_one_group_have_no_intervals_past_the_limit_either(images, tmp_path, monkeypatch):
    names = sorted(path.stem for path in images["uint8"][0].iterdir())
    (tmp_path / "groups.csv").write_text("\n".join(f"{name},all" for name in names))
    one = Groups(str(tmp_path / "groups.csv"))
    kept = evaluate(*images["uint8"], groups=one).record
    monkeypatch.setattr(totals, "MOST_KEPT", 3)
    record = evaluate(*images["uint8"], groups=one).record
    assert np.isnan([*record.calibration.ci.values(), *record.segmentation_ci.values()]).all()
    assert (repr(record.reliability), record.groups) == (repr(kept.reliability), 1)
    assert "only one group" in " ".join(record.warnings)


def test_mean_entropies_past_the_limit_are_in_the_order_of_their_values(images, tmp_path, monkeypatch):
    how = Settings(entropy=True, full=False)
    kept = evaluate(*images["mixed"], settings=how).record
    monkeypatch.setattr(totals, "MOST_KEPT", 20)
    summed = compute(merge(tmp_path, cut(images["mixed"], how, None, 3, random.Random(4))), "parts", "parts").record
    assert summed.entropy.histogram == kept.entropy.histogram
    assert list(summed.entropy.images) == sorted(kept.entropy.images)


def test_a_part_past_the_limit_has_no_names_and_its_size_does_not_grow(images, tmp_path, monkeypatch):
    monkeypatch.setattr(totals, "MOST_KEPT", 10)
    monkeypatch.setattr(image_sums, "MOST_HASHES", 16)
    sizes = []
    for count in (20, 50):
        pairs = find_pairs(*images["uint8"])[0][:count]
        part = Partial("m", "d", score_all(pairs, Settings(), 1, False, silent)[0], ())
        write_partial(tmp_path / "a.sketch", part)
        with zipfile.ZipFile(tmp_path / "a.sketch") as archive:
            sizes.append(sum(member.file_size for member in archive.infolist() if "/" in member.filename))
            assert archive.read("each/names") == b""
        assert pack_partial(read_partial(tmp_path / "a.sketch")) == (tmp_path / "a.sketch").read_bytes()
    assert sizes[0] == sizes[1]


def test_overlap_is_noticed_among_parts_with_names_and_the_others_are_counted(images, tmp_path, monkeypatch):
    monkeypatch.setattr(totals, "MOST_KEPT", 30)
    parts = cut(images["uint8"], Settings(), None, 3, random.Random(0))
    assert merge(tmp_path, parts).unchecked == 0  # each below the limit
    with pytest.raises(InputError, match="must not overlap"):
        merge(tmp_path, [*parts, parts[1]])
    (whole,) = cut(images["uint8"], Settings(), None, 1, random.Random(0))
    with pytest.raises(InputError, match=r"the image 'a\d+' \(\d+ images occur twice\).*must not overlap"):
        merge(tmp_path, [whole, parts[0]])
    monkeypatch.setattr("densecal.evaluation.partial.MOST_HASHES", len(parts[0].total.stems))
    assert merge(tmp_path, parts).unchecked == IMAGES - len(parts[0].total.stems)


def test_parts_past_the_limit_keep_the_smallest_hashes_and_notice_overlap_by_them(images, tmp_path, monkeypatch):
    monkeypatch.setattr(totals, "MOST_KEPT", 10)
    monkeypatch.setattr(image_sums, "MOST_HASHES", 12)
    parts = cut(images["uint8"], Settings(), None, 3, random.Random(0))
    merged = merge(tmp_path, parts)
    kept = [len(part.total.sums.hashes) for part in parts]
    assert (min(kept), max(kept)) == (12, 12)
    assert merged.unchecked == IMAGES - 36
    names = (path.stem for path in images["uint8"][0].iterdir())
    hashes = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    smallest = sorted(int.from_bytes(content, "little") for content in hashes)[:12]
    assert merged.total.sums.hashes.tolist() == smallest
    with pytest.raises(InputError, match=r"1\.sketch: an image without its name \(12 images occur twice\)"):
        merge(tmp_path, [parts[1], parts[1], parts[0]])
    # 26 images and the 27 others: a few in common are noticed where they are among the smallest
    pairs = find_pairs(*images["uint8"])[0]
    pairs.sort(key=lambda pair: hashlib.blake2b(pair.stem.encode(), digest_size=8).digest()[::-1])
    first, second, third = (
        Partial("m", "d", score_all(part, Settings(), 1, False, silent)[0], ())
        for part in (pairs[::2], pairs[1::2] + pairs[:1], pairs[1::2] + pairs[-1:])
    )
    with pytest.raises(InputError, match=r"1\.sketch: an image without its name; expected it in .*0\.sketch alone"):
        merge(tmp_path, [first, second])
    assert merge(tmp_path, [first, third]).total.images == IMAGES + 1


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("images/hashes", 3, 1),  # not in order
        ("images/number", 0, 3),  # fewer than were counted
        ("images/sums", 0, 7),  # pixels
        ("images/sums", 1, -1),  # correct pixels
        ("images/sums", -1, 1 << 33),  # what is left of a number is below 1
        ("images/sums", 5, -(1 << 62)),  # a gap
        ("images/cells", 17, 4),
        ("images/cells", [17, 18], [-4, 4]),
    ],
)
def test_sums_that_no_images_have_are_one_line(images, tmp_path, monkeypatch, name, place, value):
    monkeypatch.setattr(totals, "MOST_KEPT", 30)
    (part,) = cut(images["uint8"], Settings(), None, 1, random.Random(0))
    write_partial(tmp_path / "a.sketch", part)
    with zipfile.ZipFile(tmp_path / "a.sketch") as archive:
        array = np.frombuffer(archive.read(name), np.int64).copy()
    array[place] = value
    with pytest.raises(InputError, match=r"inconsistent sums over images|do not belong together|images/hashes of"):
        read_partial(rewritten(tmp_path / "a.sketch", tmp_path / "b.sketch", {name: array.tobytes()}))


def synthetic(names: list[str], row: np.ndarray) -> Part:
    """What a worker sends of images that are alike."""
    part = Part(stems=names, rows=[row.copy() for _ in names], is_float=[False] * len(names))
    for _ in names:
        part.per_image.add(overlaps=np.array([0.5, 0.25]), cases=np.ones((1, 6)), confidences=np.ones(5))
    return part


def test_memory_does_not_grow_with_images_past_the_limit(monkeypatch):
    monkeypatch.setattr(totals, "MOST_KEPT", 500)
    monkeypatch.setattr(image_sums, "MOST_HASHES", 500)
    total = totals.Total(Settings(full=False))
    row, held = np.array([100.0, 90.0, 95.0, 12.0, 30.0, *np.zeros(9), 5.0]), []
    tracemalloc.start()
    for chunk in range(96):
        total.add(synthetic([f"image {chunk} {i}" for i in range(32)], row))
        if chunk in (31, 95):
            held.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert total.images == 96 * 32
    assert held[1] - held[0] < 4096  # 120 bytes of a row each would be 240 KB


@pytest.mark.parametrize("count", [1, 50])
def test_one_part_and_as_many_as_images_give_the_same_bytes(images, tmp_path, count):
    assert_same(tmp_path, images["mixed"], Settings(), GROUPS, count, random.Random(count))


@pytest.mark.slow
@settings(max_examples=12)
@given(
    kind=st.sampled_from(KINDS), full=st.booleans(), grouped=st.booleans(), seed=st.integers(0, 2**32),
    limit=st.sampled_from([1 << 20, 300, 2000]), most=st.sampled_from([1 << 20, 52, 20, 2]),
    count=st.sampled_from([1, 3, 7, 50]),
)  # fmt: skip
def test_no_cut_and_no_order_changes_a_bit(images, tmp_path_factory, kind, full, grouped, seed, limit, most, count):
    folder = tmp_path_factory.mktemp("parts")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sketch_module, "EXACT_PIXELS", limit)
        patch.setattr(totals, "MOST_KEPT", most)
        how, groups = settings_of(kind, full), GROUPS if grouped else None
        assert_same(folder, images[kind], how, groups, count, random.Random(seed))


def test_the_row_of_an_image_does_not_depend_on_its_neighbours(images):
    pairs, _ = find_pairs(*images["uint8"])
    together, _ = score_all(pairs, Settings(), 1, False, silent)
    alone = [score_all([pair], Settings(), 1, False, silent)[0].meter.sketch.image_rows()[0] for pair in pairs]
    assert np.array_equal(together.meter.sketch.image_rows(), np.stack(alone))


def test_entropies_and_skipped_files_come_in_the_order_of_names(images, tmp_path):
    how = Settings(entropy=True)
    parts = cut(images["mixed"], how, None, 3, random.Random(1))
    names = ["x/b.png", "x/a-1.png", "x/a.png"]
    parts = [
        dataclasses.replace(part, skipped=(SkippedFile(name, "why"),)) for part, name in zip(parts, names, strict=True)
    ]
    record = compute(merge(tmp_path, parts), "parts", "parts").record
    whole = evaluate(*images["mixed"], settings=how).record
    assert record.entropy == whole.entropy
    assert [entry.file for entry in record.skipped] == ["x/a.png", "x/a-1.png", "x/b.png"]


def test_one_call_lists_skipped_files_by_name_too(tmp_path):
    maps, masks = write_images(tmp_path, "uint8")
    (masks / "d44.png").unlink()  # no partner, which is noticed first
    (maps / "a0.npy").write_bytes(b"not an array")
    record = evaluate(maps, masks, settings=Settings(full=False), skip_bad=True).record
    assert [Path(entry.file).stem for entry in record.skipped] == ["a0", "d44"]


def test_a_part_read_and_written_again_is_the_same_file(images, tmp_path):
    (part,) = cut(images["mixed"], Settings(), GROUPS, 1, random.Random(0))
    write_partial(tmp_path / "a.sketch", part)
    assert pack_partial(read_partial(tmp_path / "a.sketch")) == (tmp_path / "a.sketch").read_bytes()


def test_names_that_are_not_utf8_survive(images, tmp_path):
    (part,) = cut(images["uint8"], Settings(), None, 1, random.Random(0))
    part.total.stems[0] = "\udcff"
    write_partial(tmp_path / "a.sketch", part)
    assert read_partial(tmp_path / "a.sketch").total.stems == part.total.stems


def test_an_image_in_two_parts_is_refused(images, tmp_path):
    parts = cut(images["uint8"], Settings(), None, 2, random.Random(0))
    with pytest.raises(InputError, match=r"the image 'a\d+' \(\d+ images occur twice\).*must not overlap"):
        merge(tmp_path, [*parts, parts[0]])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (Settings(bins=15), "bins 15; expected bins 10, as in "),
        (Settings(full=False), "full False; expected full True"),
        (Settings(ignore_index=7), "ignore_index 7; expected ignore_index None"),
    ],
)
def test_parts_of_other_settings_are_refused(images, tmp_path, other, message):
    parts = [cut(images["uint8"], how, None, 1, random.Random(0))[0] for how in (Settings(), other)]
    with pytest.raises(InputError, match=message):
        merge(tmp_path, parts)


def test_parts_with_and_without_groups_are_refused(images, tmp_path):
    parts = [cut(images["uint8"], Settings(), groups, 1, random.Random(0))[0] for groups in (None, GROUPS)]
    with pytest.raises(InputError, match="with groups; expected a part without groups"):
        merge(tmp_path, parts)


# ------------------------------------------------------------------ files


@pytest.fixture(scope="module")
def part_file(images, tmp_path_factory):
    """The file of one part."""
    path = tmp_path_factory.mktemp("part") / "part.sketch"
    write_partial(path, cut(images["mixed"], Settings(), GROUPS, 1, random.Random(0))[0])
    return path


def rewritten(path: Path, target: Path, changes: dict[str, bytes | None]) -> Path:
    """Copy a part with other members; the digest is wrong unless it is given."""
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as copy:
        members = {name: archive.read(name) for name in archive.namelist()} | changes
        for name, content in members.items():
            if content is not None:
                copy.writestr(name, content)
    return target


@pytest.mark.parametrize(
    "name", ["densecal evaluate", "sketch/levels", "each/rows", "each/names", "segmentation/curves"]
)
def test_a_changed_byte_is_noticed_by_the_digest(part_file, tmp_path, name):
    with zipfile.ZipFile(part_file) as archive:
        content = bytearray(archive.read(name))
    # the last digit of a number or letter of a name, so that everything else still fits
    content[-2 if name == "each/names" else content.rindex(b"}") if b"}" in content[-9:] else -8] ^= 1
    with pytest.raises(InputError) as caught:
        read_partial(rewritten(part_file, tmp_path / "a.sketch", {name: bytes(content)}))
    assert "a.sketch" in str(caught.value)
    if name == "each/names":
        assert "damaged (its digest is wrong)" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"each/rows": None}, "no each/rows"),
        ({"sha256": b"0" * 64}, "its digest is wrong"),
        ({"sha256": None}, "its digest is wrong"),
        ({"more": b""}, "a member 'more'"),
        ({"sketch/top": b"\0" * 8}, "sketch/top of 8 bytes; expected 320"),
        ({"densecal evaluate": b'{"version": 2}'}, "version 2; expected version 1"),
        ({"densecal evaluate": b"[]"}, "version None"),
        ({"densecal evaluate": None}, "something else"),
        ({"sketch/levels": b"\xff" * (3 * 2 * 65536 * 8)}, "negative numbers in levels"),
        ({"each/rows": b"\0" * (53 * 15 * 8)}, "do not belong together"),
    ],
)
def test_what_is_no_part_is_one_line(part_file, tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        read_partial(rewritten(part_file, tmp_path / "a.sketch", changes))


def test_rows_that_expand_too_far_are_refused_before_they_are_read(part_file, tmp_path):
    bomb = rewritten(part_file, tmp_path / "a.sketch", {"each/rows": bytes(15 * 8 * (1 << 17))})
    with pytest.raises(InputError, match="at most 64 bytes from each compressed byte"):
        read_partial(bomb)


# ------------------------------------------------------------------ commands


@pytest.fixture(scope="module")
def workplace(images, tmp_path_factory):
    """Two folders of parts beside the whole."""
    folder = tmp_path_factory.mktemp("commands")
    for kind, target in zip(("maps", "masks"), images["mixed"], strict=True):
        shutil.copytree(target, folder / kind)
        for file in target.iterdir():
            part = folder / f"{kind}-{hash_of(file.stem)}"
            part.mkdir(exist_ok=True)
            shutil.copy(file, part)
    return folder


def hash_of(stem: str) -> int:
    return int(stem[1:]) % 2


def test_the_commands_write_the_same_bytes(workplace):
    common = ["--groups", "^[a-d]", "--name", "m", "--dataset", "d", "--workers", "1"]
    assert densecal(workplace, "evaluate", "maps", "masks", "--json", "one.json", *common)[0] == 0
    for i in range(2):
        command = ["evaluate", f"maps-{i}", f"masks-{i}", "--partial", f"{i}.sketch", *common]
        assert densecal(workplace, *command)[0] == 0
    for order in (["0.sketch", "1.sketch"], ["1.sketch", "0.sketch"]):
        assert densecal(workplace, "merge", *order, "--json", "merged.json", "--csv", "t.csv")[0] == 0
        assert (workplace / "merged.json").read_bytes() == (workplace / "one.json").read_bytes()
    assert json.loads((workplace / "one.json").read_text())["images"] == IMAGES


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["evaluate", "maps", "masks", "--partial", "p.sketch", "--json", "a.json"], "--partial alone"),
        (["evaluate", "maps", "masks", "--partial", "maps/a0.npy"], "a file that this command reads"),
        (["evaluate", "maps", "masks", "--partial", "notes.sketch"], "did not write"),
        (["merge", "notes.sketch"], "notes.sketch: unreadable"),
        (["merge", "nothing.sketch"], "nothing.sketch: no such file"),
        (["merge", "x.sketch", "--json", "x.sketch", "--force"], "a file that this command reads"),
        (["merge", "x.sketch", "y.sketch"], "--name: parts called 'maps-0', 'maps-1'"),
        (["merge", "x.sketch", "x.sketch"], "must not overlap"),
    ],
)
def test_commands_refuse_in_one_line(workplace, command, message):
    (workplace / "notes.sketch").write_text("my notes")
    for i, name in enumerate(("x.sketch", "y.sketch")):
        if not (workplace / name).exists():
            densecal(workplace, "evaluate", f"maps-{i}", f"masks-{i}", "--metrics", "fast", "--partial", name)
    before = {path: path.read_bytes() for path in workplace.glob("*.sketch")}
    assert_one_line(densecal(workplace, *command), message)
    assert before == {path: path.read_bytes() for path in workplace.glob("*.sketch")}
