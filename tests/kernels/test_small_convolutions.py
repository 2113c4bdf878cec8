"""Our convolutions between few channels compute what PyTorch's do; the kernels run in Triton's interpreter here."""

import copy
from pathlib import Path

import pytest
import torch
from timm.layers import Conv2dSame
from torch import nn

from densecal.kernels import small_convolutions as narrow
from densecal.kernels.small_convolutions import replace_small_convolutions
from tests.running import interpreted


@pytest.fixture(scope="module")
def found():
    return interpreted(Path(__file__).with_name("small_convolutions_check.py"))


def test_layers_agree_with_pytorch_in_float64(found):
    assert len(found["layers"]) == 7
    for layer in found["layers"]:
        assert max(layer["output"], layer["dx"]) <= 2**-11, layer
        assert max(layer["dweight"], layer.get("dbias", 0)) < 2e-5, layer


def test_the_last_convolutions_of_a_u_net_use_them(found):
    block = "network.decoder.blocks.4"
    assert found["convolutions"] == [f"{block}.conv1.0", f"{block}.conv2.0", "network.segmentation_head.0"]


def test_full_precision_is_left_alone(found):
    assert found["full precision"]


def test_wrong_kernels_are_not_used(found):
    assert found["warnings"] == ["narrow convolution kernels disagree with PyTorch on cpu: PyTorch's are used"] * 4


def test_a_copy_has_weights_of_its_own(found):
    assert found["copy"]


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(33, 16, 3, padding=1),
        nn.Conv2d(16, 17, 3, padding=1),
        nn.Conv2d(6, 6, 3, padding=1, groups=3),
        nn.Conv2d(6, 6, 3, padding=1, groups=6),
        nn.Conv2d(6, 6, 1, padding=1),
        nn.Conv2d(6, 6, 3),
        nn.Conv2d(6, 6, 3, 2, padding=1),
        nn.Conv2d(6, 6, 3, padding=1, dilation=2),
        nn.Conv2d(6, 6, 3, padding="same"),
        nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect"),
        nn.ConvTranspose2d(6, 6, 3, padding=1),
        Conv2dSame(6, 6, 3, padding=1),
    ],
    ids=str,
)
def test_other_convolutions_are_left_alone(conv):
    replace_small_convolutions(conv)
    assert "forward" not in vars(conv)


def test_on_a_cpu_nothing_changes():
    conv = nn.Conv2d(6, 4, 3, padding=1)
    fused = copy.deepcopy(conv)
    replace_small_convolutions(fused)
    assert "forward" in vars(fused)
    x = torch.randn(2, 6, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fused(x), conv(x))


def test_what_the_kernels_do_not_take_is_for_pytorch(monkeypatch):
    monkeypatch.setattr(narrow, "_DEVICES", ("cpu",))
    conv = nn.Conv2d(6, 4, 3, padding=1)
    fused = copy.deepcopy(conv)
    replace_small_convolutions(fused)
    x = torch.randn(2, 6, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(fused(x[0]), conv(x[0]))
        assert fused(x[:0]).shape == (0, 4, 7, 8)
        with pytest.raises(RuntimeError, match="channels"):
            fused(x[:, :4])


def test_kernels_that_cannot_be_translated_are_not_used(monkeypatch):
    monkeypatch.setattr(narrow, "_DEVICES", ("cpu",))

    def refuse(*_, **__):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(narrow, "_convolved", refuse)
    narrow._kernels_agree.cache_clear()
    conv = nn.Conv2d(6, 4, 3, padding=1)
    x = torch.randn(2, 6, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        wanted = conv(x)
        replace_small_convolutions(conv)
        with pytest.warns(UserWarning, match=r"narrow convolution kernels fail \(no compiler\) on cpu"):
            assert torch.equal(conv(x), wanted)
    narrow._kernels_agree.cache_clear()


def test_prediction_tries_the_output_alone(monkeypatch):
    monkeypatch.setattr(narrow, "_DEVICES", ("cpu",))
    gradients = []
    monkeypatch.setattr(narrow, "agree", lambda *given: gradients.append(given[4]))
    narrow._kernels_agree.cache_clear()
    conv = nn.Conv2d(6, 4, 3, padding=1)
    replace_small_convolutions(conv)
    x = torch.randn(2, 6, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.inference_mode():
            conv(x)
        conv(x)
    assert [gradient is None for gradient in gradients] == [True, False]
    narrow._kernels_agree.cache_clear()
