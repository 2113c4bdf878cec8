"""docs/calibrators.md: its figure is drawn by its tool, and its tables leave no calibrator out."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from densecal.posthoc import applicable

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/calibrators.md").read_text(encoding="utf-8")


def test_the_figure_is_drawn_from_maps_and_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs/tools"))
    import make_calibrator_figure  # type: ignore[import-not-found]
    import make_figures

    rng = np.random.default_rng(0)
    for name in ("maps", "masks"):
        (tmp_path / name).mkdir()
    for i in range(4):
        z = rng.normal(size=(60, 80)) * 3
        p = 1 / (1 + np.exp(-1.5 * z))
        Image.fromarray(np.rint(65535 * p).astype(np.uint16)).save(tmp_path / "maps" / f"{i}.png")
        Image.fromarray(rng.random(z.shape) < 1 / (1 + np.exp(-z))).save(tmp_path / "masks" / f"{i}.png")
    monkeypatch.setattr(make_figures, "IMAGES", tmp_path / "drawn")
    make_calibrator_figure.main(tmp_path / "maps", tmp_path / "masks")
    (drawn,) = (tmp_path / "drawn").iterdir()
    assert f"(images/{drawn.name})" in PAGE
    pixels = np.asarray(Image.open(drawn).convert("L"))
    assert pixels.std() > 10


@pytest.mark.parametrize(("heading", "classes"), [("Measured on CamVid", 11), ("Measured on ECSSD", 1)])
def test_every_calibrator_is_measured(heading: str, classes: int) -> None:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    measured = set(re.findall(r"^\| `([\w-]+)` \| densecal \| [\d.]+ \|", section, flags=re.MULTILINE))
    assert measured == set(applicable(classes))
