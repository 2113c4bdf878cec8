"""A published network on a published volume: deepbet finds the brain in nilearn's MNI template, from map to report.

Needs the files of the packages deepbet and nilearn, which CI does not install: `pip install deepbet==1.0.2 nilearn`.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from scipy.ndimage import zoom

from tests.running import run

SIDE = 128


def package_file(package: str, ending: str) -> Path:
    """Return a file of an installed package, or skip the test."""
    try:
        files = importlib.metadata.files(package) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    return Path(str(next(file for file in files if str(file).endswith(ending)).locate()))


@pytest.mark.slow
def test_a_brain_is_evaluated_repaired_and_reported(tmp_path):
    network = package_file("deepbet", "models/bbox_model.pt")
    t1, grey, white = (
        nibabel.load(package_file("nilearn", f"icbm152_{kind}_tal_nlin_sym_09a_converted.nii.gz"))
        for kind in ("t1", "gm", "wm")
    )
    factors = [SIDE / side for side in t1.shape]
    volume = zoom(np.asarray(t1.dataobj, np.float32), factors, order=1)
    tissue = (np.asarray(part.dataobj, np.float32) / 255 for part in (grey, white))
    brain = zoom(sum(tissue), factors, order=1) > 0.5
    affine = t1.affine @ np.diag([*(1 / f for f in factors), 1])
    steps = tmp_path / "deepbet.yaml"
    steps.write_text(f"axes: xyz\ntile: {SIDE}\npercentiles: [0.5, 99.5]\nnormalise: range\noutput: 0\n")
    for name in ("scans", "brains", "maps", "masks"):
        (tmp_path / name).mkdir()
    for case, noise in enumerate((0.0, 0.15)):
        noisy = volume + noise * np.ptp(volume) * np.random.default_rng(case).normal(size=volume.shape)
        nibabel.save(nibabel.Nifti1Image(noisy.astype(np.float32), affine), tmp_path / f"scans/mni{case}.nii.gz")
        nibabel.save(nibabel.Nifti1Image(brain.astype(np.uint8), affine), tmp_path / "masks" / f"mni{case}.nii.gz")
    options = ("--preprocess", steps, "--out", tmp_path / "brains", "--device", "cpu")
    assert run("predict", network, tmp_path / "scans", *options)[0] == 0
    for path in (tmp_path / "brains").iterdir():
        both = nibabel.load(path)  # background and brain
        np.testing.assert_allclose(both.affine, affine, atol=1e-4)
        nibabel.save(nibabel.Nifti1Image(np.asarray(both.dataobj)[..., 1], affine), tmp_path / "maps" / path.name)
    maps, masks, scores = tmp_path / "maps", tmp_path / "masks", tmp_path / "scores.json"
    assert run("evaluate", maps, masks, "--json", scores, "--workers", 1)[0] == 0
    before = json.loads(scores.read_text())
    assert before["segmentation"]["dice_image_mean"] > 0.7
    assert before["cases"]["unit"] == "ml"
    assert before["cases"]["classes"][0]["means"]["nsd"] > 0
    calibrator, repaired = tmp_path / "temperature.json", tmp_path / "repaired"
    assert run("calibrate", "fit", "temperature", maps, masks, "--out", calibrator)[0] == 0
    assert run("calibrate", "apply", calibrator, maps, "--out", repaired)[0] == 0
    assert (
        run("evaluate", repaired, masks, "--json", tmp_path / "after.json", "--metrics", "fast", "--workers", 1)[0] == 0
    )
    after = json.loads((tmp_path / "after.json").read_text())
    assert after["calibration"]["nll"] < before["calibration"]["nll"]
    page = tmp_path / "report.html"
    assert run("report", scores, "--predictions", maps, "--masks", masks, "--out", page)[0] == 0
    assert "mni0" in page.read_text(encoding="utf-8")
