"""Volumes in the gallery: the slices in which a map is most confident and wrong, side by side."""

import numpy as np

from densecal.evaluation.folders import evaluate
from densecal.evaluation.worker import Settings
from densecal.report.gallery import Folders, folder_examples
from densecal.report.strips import strip, worst_slices


def test_the_slices_with_the_most_confident_mistakes_are_chosen():
    rng = np.random.default_rng(0)
    confidence, wrong = rng.uniform(0.5, 1, (16, 4, 5)), rng.random((16, 4, 5)) < 0.1
    for index in (2, 3, 9, 12):
        wrong[index] = True
        confidence[index] = 1.0 - index / 100
    assert worst_slices(confidence, wrong, 3) == [2, 9, 12]  # 3 is beside 2
    assert worst_slices(confidence[:3], wrong[:3]) == [0, 1, 2]


def test_a_strip_puts_slices_side_by_side():
    volume = np.arange(2 * 5 * 3 * 4).reshape(2, 5, 3, 4)
    assert np.array_equal(strip(volume, [1, 4])[1], np.hstack([volume[1, 1], volume[1, 4]]))


def test_the_gallery_shows_volumes(tmp_path):
    for classes in (None, 3):
        root = tmp_path / str(classes)
        for name in ("maps", "masks"):
            (root / name).mkdir(parents=True)
        for case in range(2):
            rng = np.random.default_rng(case)
            p = rng.dirichlet(np.ones(3), (8, 6, 7)).transpose(3, 0, 1, 2)
            labels = rng.integers(0, classes or 2, (8, 6, 7)).astype(np.uint8)
            np.save(root / "maps" / f"{case}.npy", p[0] if classes is None else p)
            np.save(root / "masks" / f"{case}.npy", labels)
        record = evaluate(root / "maps", root / "masks", settings=Settings(classes=classes)).record
        examples = folder_examples([record], Folders(root / "maps", root / "masks"), 2)
        assert {example.name for example in examples} == {"0", "1"}
        for example in examples:
            p, y = (np.load(root / kind / f"{example.name}.npy") for kind in ("maps", "masks"))
            q = np.stack([1 - p, p]) if classes is None else p
            entropy = -(q * np.log(q)).sum(axis=0).mean() / np.log(len(q))
            assert abs(example.entropy - entropy) < 1e-6
            chosen = worst_slices(q.max(axis=0), q.argmax(axis=0) != y)
            assert len(chosen) == 4
            shown = example.pictures["confidence"].pixels
            assert shown.shape == (6, 4 * 7)
            least = 1 / len(q)
            expected = np.hstack([(q.max(axis=0)[i] - least) / (1 - least) for i in chosen])
            assert np.abs(shown / 255 - expected).max() < 1 / 254
