"""Batches have every sample once and are the same for any number of processes. Reading ahead loses no errors."""

import numpy as np
import pytest
import torch

from densecal.errors import InputError
from densecal.runtime.prefetch import prefetch
from densecal.training.samples import ArraySamples, epoch_batches, open_data, open_parts, to_device, validation_batches
from densecal.training.sections import DataConfig
from tests.data import published, samples


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize(("count", "batch"), [(10, 4), (9, 3), (7, 7), (5, 8), (13, 4), (5, 2)])
def test_processes_share_the_batches_of_one(count, batch, world):
    one = epoch_batches(count, batch, epoch=2, seed=5, rank=0, world=1)
    shares = [epoch_batches(count, batch, 2, 5, rank, world) for rank in range(world)]
    for step, whole in enumerate(one):
        parts = [share[step] for share in shares]
        assert {len(part.ids) for part in parts} == {len(parts[0].ids)}
        seen = np.concatenate([part.ids[part.ids >= 0] for part in parts])
        assert sorted(seen) == sorted(whole.ids)
        assert {part.global_size for part in parts} == {len(whole.ids)}
    assert sorted(np.concatenate([b.ids for b in one])) == list(range(count))
    assert max(len(b.ids) for b in one) - min(len(b.ids) for b in one) <= 1
    assert max(len(b.ids) for b in one) <= batch + 1
    assert min(len(b.ids) for b in one) > 1


def test_the_order_depends_on_seed_and_epoch_alone():
    first = [b.ids.tolist() for b in epoch_batches(50, 8, 3, 1, 0, 1)]
    assert first == [b.ids.tolist() for b in epoch_batches(50, 8, 3, 1, 0, 1)]
    assert first != [b.ids.tolist() for b in epoch_batches(50, 8, 4, 1, 0, 1)]
    assert first != [b.ids.tolist() for b in epoch_batches(50, 8, 3, 2, 0, 1)]


def test_no_epoch_of_a_run_has_the_order_of_another_seeds_epoch():
    orders = {tuple(epoch_batches(20, 20, epoch, seed, 0, 1)[0].ids) for epoch in range(5) for seed in range(5)}
    assert len(orders) == 25


def test_validation_covers_everything_once():
    seen = [i for rank in range(3) for batch in validation_batches(11, 2, rank, 3) for i in batch.ids]
    assert sorted(seen) == list(range(11))


def test_prefetching_keeps_order_and_errors():
    assert list(prefetch(iter(range(20)))) == list(range(20))

    def broken():
        yield 1
        raise OSError("gone")

    ahead = prefetch(broken())
    assert next(ahead) == 1
    with pytest.raises(OSError, match="gone"):
        next(ahead)


def test_prefetching_can_be_left_early():
    ahead = prefetch(iter(range(1000)))
    assert next(ahead) == 0
    ahead.close()


def test_images_and_masks_arrive_in_the_types_that_methods_take():
    rng = np.random.default_rng(0)
    images, masks = rng.integers(0, 256, (3, 8, 6, 3), np.uint8), rng.integers(0, 2, (3, 8, 6), np.uint8) * 255
    samples = ArraySamples(["a", "b", "c"], images, masks)
    x, y = to_device(*samples.batch(np.array([2, 0])), torch.device("cpu"), 1)
    assert x.shape == (2, 3, 8, 6)
    assert x.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x[0, :, 1, 2], torch.from_numpy(images[2, 1, 2]).float() / 255)
    assert y.shape == (2, 1, 8, 6)
    assert set(y.unique().tolist()) == {0.0, 1.0}
    _, labels = to_device(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.full((2, 4, 4), 7, dtype=torch.uint8),
                          torch.device("cpu"), 11)  # fmt: skip
    assert labels.dtype == torch.int64
    assert labels.shape == (2, 4, 4)


def test_validation_images_may_be_a_set_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    train = published.write_set("CamVid train", tmp_path, ["a", "b", "c"])
    config = DataConfig(
        images=str(train), validation=str(train.with_name("val")), size=16, classes=11, ignore_index=11, workers=1
    )
    data = open_data(config)
    assert data.train.names == ["a", "b", "c"]
    assert data.validation.names == ["val-a", "val-b", "val-c"]
    archive = samples.zipped(tmp_path / "more.zip", ["x", "y"])
    first, second = open_parts(
        DataConfig(images=str(samples.zipped(tmp_path / "t.zip", ["x"])), validation=str(archive))
    )
    assert (first.names, second.names) == (["x"], ["x", "y"])
    with pytest.raises(InputError, match="does not exist"):
        open_parts(DataConfig(images=str(archive), validation=str(tmp_path / "nowhere.zip")))


def test_the_split_keeps_groups_together(tmp_path):
    names = [f"patient{i // 4}_{i % 4}" for i in range(40)]
    archive = str(samples.zipped(tmp_path / "scans.zip", names))
    train, validation = open_parts(DataConfig(images=archive, validation=6, groups="patient[0-9]"))
    patients = [{name[:8] for name in part.names} for part in (train, validation)]
    assert len(validation.names) == 8
    assert not patients[0] & patients[1]
    with pytest.raises(InputError, match=r"data\.groups: no group for 'patient0_0' \(20 images have none\)"):
        open_parts(DataConfig(images=archive, validation=6, groups="patient[5-9]"))
    with pytest.raises(ValueError, match="groups 'x' with scenes; expected images"):
        DataConfig(scenes={}, groups="x")


def test_other_masks_of_the_same_images_are_packed_beside_them(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    images, masks = samples.folders(tmp_path, ["a", "b", "c"])
    other = tmp_path / "other"
    for name in "abc":
        samples.save(255 - samples.mask(0), other / f"{name}.png")
    batches = []
    for folder in (masks, other, masks):
        config = DataConfig(images=str(images), masks=str(folder), validation=1, size=16, workers=1)
        batches.append(open_data(config).train.batch(np.arange(2))[1])
    assert torch.equal(batches[0], batches[2])
    assert not torch.equal(batches[0], batches[1])
    assert not caplog.records  # no cache was rebuilt
