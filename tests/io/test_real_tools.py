"""Files that nnU-Net, MONAI and transformers themselves write, where they are installed."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import nibabel
import numpy as np
import pytest
import torch
from PIL import Image

import densecal
from densecal.errors import InputError
from densecal.evaluation.worker import Settings
from densecal.io.map_options import MapOptions

pytestmark = pytest.mark.slow

SHAPE = (5, 8, 9)
AFFINE = np.array([[-0.8, 0.1, 0, 10], [0.05, -0.9, 0, 20], [0, 0, 2.5, -30], [0, 0, 0, 1.0]])


def brier(p: np.ndarray, y: np.ndarray) -> float:
    truth = np.arange(len(p)).reshape(-1, *(1,) * y.ndim) == y
    return float(((p - truth) ** 2).sum(axis=0).mean())


def measured(maps: Path, masks: Path, **options: object) -> float:
    settings = Settings(full=False, maps=MapOptions(**options))
    return densecal.evaluate(maps, masks, settings=settings).record.calibration["brier"]


@pytest.mark.parametrize("regions", [False, True])
def test_archives_of_nnunet_are_read(tmp_path, regions):
    pytest.importorskip("nnunetv2", reason="nnunetv2 is not installed")
    from nnunetv2.imageio.simpleitk_reader_writer import SimpleITKIO
    from nnunetv2.inference.export_prediction import export_prediction_from_logits
    from nnunetv2.utilities.plans_handling.plans_handler import PlansManager

    resampling = {"is_seg": False, "order": 1, "order_z": 0, "force_separate_z": None}
    configuration = {
        "architecture": {},  # of the network, which is not built
        "spacing": [2.5, 0.9, 0.8],
        "resampling_fn_probabilities": "resample_data_or_seg_to_shape",
        "resampling_fn_probabilities_kwargs": resampling,
    }
    plans = PlansManager(
        {
            "dataset_name": "Dataset001_Test",
            "plans_name": "nnUNetPlans",
            "image_reader_writer": "SimpleITKIO",
            "transpose_forward": [0, 1, 2],
            "transpose_backward": [0, 1, 2],
            "label_manager": "LabelManager",
            "configurations": {"3d_fullres": configuration},
        }
    )
    labels = {"background": 0, "whole": [1, 2], "core": 2} if regions else {"background": 0, "liver": 1, "tumour": 2}
    about = {"labels": labels, "file_ending": ".nii.gz", "channel_names": {"0": "CT"}, "regions_class_order": [1, 2]}
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, SHAPE).astype(np.uint8)
    for folder in ("imagesTr", "labelsTr", "out"):
        (tmp_path / folder).mkdir()
    (tmp_path / "out" / "dataset.json").write_text(json.dumps(about))
    nibabel.save(nibabel.Nifti1Image(truth.T, np.diag([0.8, 0.9, 2.5, 1])), tmp_path / "labelsTr" / "case.nii.gz")
    image, properties = SimpleITKIO().read_images([str(tmp_path / "labelsTr" / "case.nii.gz")])
    assert image.shape == (1, *SHAPE)
    crop = [[1, 5], [0, 8], [2, 9]]  # nnU-Net predicts inside the box of values other than 0
    inner = tuple(high - low for low, high in crop)
    properties |= {
        "shape_before_cropping": SHAPE, "bbox_used_for_cropping": crop,
        "shape_after_cropping_and_before_resampling": inner,
    }  # fmt: skip
    logits = torch.from_numpy(rng.normal(0, 2, (2 if regions else 3, *inner)).astype(np.float32))
    export_prediction_from_logits(
        logits, properties, plans.get_configuration("3d_fullres"), plans, about, str(tmp_path / "out" / "case"), True
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {"case.npz", "case.pkl", "case.nii.gz"}
    inside = tuple(slice(*ends) for ends in crop)
    if regions:
        p = np.zeros((2, *SHAPE))
        p[(slice(None), *inside)] = torch.sigmoid(logits).numpy()
        for index, (name, members) in enumerate((("whole", (1, 2)), ("core", (2,)))):
            expected = ((p[index] - np.isin(truth, members)) ** 2).mean()
            found = measured(tmp_path / "out", tmp_path / "labelsTr", region=name)
            assert found == pytest.approx(expected, abs=1e-12)
    else:
        p = np.zeros((3, *SHAPE))
        p[0] = 1
        p[(slice(None), *inside)] = torch.softmax(logits, 0).numpy()
        assert measured(tmp_path / "out", tmp_path / "labelsTr") == pytest.approx(brier(p, truth), abs=1e-9)


@pytest.mark.parametrize("channels", [1, 3])
def test_volumes_of_monai_are_read(tmp_path, channels):
    monai = pytest.importorskip("monai.transforms", reason="monai is not installed")
    from monai.data import MetaTensor

    rng = np.random.default_rng(0)
    truth = rng.integers(0, max(channels, 2), SHAPE).astype(np.uint8)
    (tmp_path / "labelsTr").mkdir()
    nibabel.save(nibabel.Nifti1Image(truth.T, AFFINE), tmp_path / "labelsTr" / "case.nii.gz")
    z = torch.from_numpy(rng.normal(0, 2, (channels, *SHAPE[::-1])).astype(np.float32))  # (C, X, Y, Z)
    p = torch.softmax(z, 0) if channels > 1 else torch.sigmoid(z)
    meta = {"filename_or_obj": str(tmp_path / "images" / "case.nii.gz"), "spatial_shape": SHAPE[::-1]}
    meta["original_affine"] = AFFINE
    saved = MetaTensor(p, affine=torch.from_numpy(AFFINE), meta=meta)
    monai.SaveImage(output_dir=tmp_path / "out", print_log=False)(saved)
    assert (tmp_path / "out" / "case" / "case_trans.nii.gz").exists()
    turned = p.numpy().transpose(0, 3, 2, 1)
    expected = brier(turned, truth) if channels > 1 else float(((turned[0] - truth) ** 2).mean())
    assert measured(tmp_path / "out", tmp_path / "labelsTr") == pytest.approx(expected, abs=1e-7)


def test_logits_of_segformer_are_read(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from safetensors.torch import save_file

    config = transformers.SegformerConfig(
        num_labels=3, hidden_sizes=[8, 8, 8, 8], depths=[1] * 4, num_attention_heads=[1] * 4, decoder_hidden_size=8
    )
    torch.manual_seed(0)
    network = transformers.SegformerForSemanticSegmentation(config).eval()
    with torch.no_grad():
        outputs = network(torch.randn(1, 3, 64, 96))
    truth = np.random.default_rng(0).integers(0, 3, (64, 96)).astype(np.uint8)
    for folder in ("out", "labels"):
        (tmp_path / folder).mkdir()
    Image.fromarray(truth).save(tmp_path / "labels" / "a.png")
    save_file({"logits": outputs.logits.contiguous()}, tmp_path / "out" / "a.safetensors")
    assert outputs.logits.shape == (1, 3, 16, 24)
    large = torch.nn.functional.interpolate(
        outputs.logits.double(), size=(64, 96), mode="bilinear", align_corners=False
    )
    expected = brier(torch.softmax(large[0], 0).numpy(), truth)
    assert measured(tmp_path / "out", tmp_path / "labels") == pytest.approx(expected, abs=1e-9)
    processor = transformers.SegformerImageProcessor()
    (scores,) = processor.post_process_semantic_segmentation(outputs, [(64, 96)], return_segmentation_scores=True)
    (tmp_path / "out" / "a.safetensors").unlink()
    np.savez(tmp_path / "out" / "a.npz", **{name: value.numpy() for name, value in scores.items()})
    assert measured(tmp_path / "out", tmp_path / "labels") == pytest.approx(expected, abs=1e-6)


def test_scores_of_mask2former_are_read(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    from safetensors.torch import save_file

    torch.manual_seed(0)
    outputs = SimpleNamespace(
        class_queries_logits=torch.randn(1, 10, 4), masks_queries_logits=torch.randn(1, 10, 16, 24)
    )
    processor = transformers.Mask2FormerImageProcessor()
    (result,) = processor.post_process_semantic_segmentation(outputs, [(64, 96)], return_segmentation_scores=True)
    scores = result["segmentation_scores"]
    truth = np.random.default_rng(0).integers(0, 3, (64, 96)).astype(np.uint8)
    for folder in ("out", "labels"):
        (tmp_path / folder).mkdir()
    Image.fromarray(truth).save(tmp_path / "labels" / "a.png")
    save_file({name: value.contiguous() for name, value in result.items()}, tmp_path / "out" / "a.safetensors")
    p = (scores.double() / scores.double().sum(dim=0)).numpy()
    with pytest.raises(InputError, match="--normalise"):
        measured(tmp_path / "out", tmp_path / "labels")
    assert measured(tmp_path / "out", tmp_path / "labels", normalise=True) == pytest.approx(brier(p, truth), abs=1e-9)
