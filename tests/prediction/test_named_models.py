"""Networks of transformers and torchvision by name: what `predict` writes is what their own library computes."""

import numpy as np
import pytest
import torch
from PIL import Image

from densecal.errors import InputError
from densecal.prediction.named_models import load_named
from tests.running import run

SMALL = {"num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16], "num_attention_heads": [1, 2],
         "sr_ratios": [4, 2], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2],
         "decoder_hidden_size": 16}  # fmt: skip


@pytest.fixture
def photos(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for name, size in (("a", (40, 56)), ("b", (33, 48))):
        Image.fromarray(rng.integers(0, 255, (*size, 3), dtype=np.uint8)).save(tmp_path / "photos" / f"{name}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("classes", [1, 3])
def test_a_model_of_transformers_predicts_what_it_predicts_there(tmp_path, photos, classes):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.SegformerForSemanticSegmentation(
        transformers.SegformerConfig(num_labels=classes, **SMALL)
    ).eval()
    processor = transformers.SegformerImageProcessor(size={"height": 64, "width": 64})
    for part in (model, processor):
        part.save_pretrained(tmp_path / "tiny")
    options = ("--format", "npy")
    code, _, errors = run("predict", f"hf:{tmp_path / 'tiny'}", str(photos), "--out", str(tmp_path / "maps"), *options)
    assert code == 0, errors
    image = np.asarray(Image.open(photos / "a.png"))
    with torch.inference_mode():
        z = model(**processor(images=[image], return_tensors="pt")).logits
        z = torch.nn.functional.interpolate(z, (40, 56), mode="bilinear", align_corners=False)[0]
    expected = (z.sigmoid() if classes == 1 else z.softmax(0)).numpy()
    written = np.load(tmp_path / "maps/a.npy")
    assert written.shape[-2:] == (40, 56)
    np.testing.assert_allclose(written.reshape(expected.shape), expected, atol=1e-5)


def test_a_model_of_torchvision_predicts_what_it_predicts_there(tmp_path, photos, monkeypatch):
    models = pytest.importorskip("torchvision.models")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    torch.manual_seed(0)
    name = "lraspp_mobilenet_v3_large"
    weights = models.get_model_weights(name).DEFAULT
    model = models.get_model(name, weights=None, weights_backbone=None).eval()
    cached = tmp_path / "home/hub/checkpoints" / weights.url.rsplit("/", 1)[1]
    cached.parent.mkdir(parents=True)
    torch.save(model.state_dict(), cached)
    image = np.asarray(Image.open(photos / "b.png"))
    (chunks,) = load_named(f"torchvision:{name}", "cpu").chunks([image])
    (p,) = chunks
    assert p.shape == (21, 33, 48)
    with torch.inference_mode():
        pixels = weights.transforms()(torch.from_numpy(image.copy()).permute(2, 0, 1))[None]
        z = torch.nn.functional.interpolate(model(pixels)["out"], (33, 48), mode="bilinear", align_corners=False)
    np.testing.assert_allclose(p, z.softmax(1)[0].numpy(), atol=1e-5)


def test_what_cannot_be_downloaded_is_one_line(tmp_path, photos, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    code, _, errors = run("predict", "hf:nobody/nothing", str(photos), "--out", str(tmp_path / "maps"))
    assert code == 2
    assert "hf:nobody/nothing: cannot be loaded" in " ".join(errors.split())
    assert "Traceback" not in errors
    assert not (tmp_path / "maps").exists()


def test_unknown_names_and_options_that_do_not_fit_are_named(tmp_path, photos):
    with pytest.raises(InputError, match="deeplabv3_resnet50"):
        load_named("torchvision:resnet50")
    code, _, errors = run("predict", "torchvision:resnet50", str(photos), "--out", str(tmp_path / "m"), "--tile", "64")
    assert code == 2
    assert "--tile" in errors
