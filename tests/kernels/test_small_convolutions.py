"""Our convolutions between few channels compute the same as PyTorch's. Here they run in Triton's interpreter."""

import copy
from pathlib import Path

import pytest
import torch
from timm.layers import Conv2dSame
from torch import nn

from densecal.kernels import small_convolutions
from densecal.kernels.small_convolutions import replace_small_convolutions
from tests.running import interpreted


@pytest.fixture(scope="module")
def output():
    return interpreted(Path(__file__).with_name("small_convolutions_check.py"))


def test_layers_agree_with_pytorch_in_float64(output):
    assert len(output["layers"]) == 7
    for layer in output["layers"]:
        assert max(layer["output"], layer["dx"]) <= 2**-11, layer
        assert max(layer["dweight"], layer.get("dbias", 0)) < 2e-5, layer


def test_the_last_convolutions_of_a_u_net_use_our_kernels(output):
    block = "network.decoder.blocks.4"
    assert output["convolutions"] == [f"{block}.conv1.0", f"{block}.conv2.0", "network.segmentation_head.0"]


def test_full_precision_is_left_alone(output):
    assert output["full precision"]


def test_wrong_kernels_are_not_used(output):
    assert output["warnings"] == ["small convolution kernels disagree with PyTorch on cpu: PyTorch's are used"] * 4


def test_a_copy_has_weights_of_its_own(output):
    assert output["copy"]


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
    replaced = copy.deepcopy(conv)
    replace_small_convolutions(replaced)
    assert "forward" in vars(replaced)
    x = torch.randn(2, 6, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(replaced(x), conv(x))


def test_pytorch_computes_what_the_kernels_do_not_take(monkeypatch):
    monkeypatch.setattr(small_convolutions, "_DEVICES", ("cpu",))
    conv = nn.Conv2d(6, 4, 3, padding=1)
    replaced = copy.deepcopy(conv)
    replace_small_convolutions(replaced)
    x = torch.randn(2, 6, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(replaced(x[0]), conv(x[0]))
        assert replaced(x[:0]).shape == (0, 4, 7, 8)
        with pytest.raises(RuntimeError, match="channels"):
            replaced(x[:, :4])


def test_kernels_that_cannot_be_compiled_are_not_used(monkeypatch):
    monkeypatch.setattr(small_convolutions, "_DEVICES", ("cpu",))

    def refuse(*_, **__):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(small_convolutions, "_run_convolution", refuse)
    small_convolutions._kernels_agree.cache_clear()
    conv = nn.Conv2d(6, 4, 3, padding=1)
    x = torch.randn(2, 6, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        expected = conv(x)
        replace_small_convolutions(conv)
        with pytest.warns(UserWarning, match=r"small convolution kernels fail \(no compiler\) on cpu"):
            assert torch.equal(conv(x), expected)
    small_convolutions._kernels_agree.cache_clear()


def test_only_the_output_is_tested_for_prediction(monkeypatch):
    monkeypatch.setattr(small_convolutions, "_DEVICES", ("cpu",))
    gradients = []
    monkeypatch.setattr(small_convolutions, "agree", lambda *arguments: gradients.append(arguments[4]))
    small_convolutions._kernels_agree.cache_clear()
    conv = nn.Conv2d(6, 4, 3, padding=1)
    replace_small_convolutions(conv)
    x = torch.randn(2, 6, 7, 8)
    with torch.autocast("cpu", torch.bfloat16):
        with torch.inference_mode():
            conv(x)
        conv(x)
    assert [gradient is None for gradient in gradients] == [True, False]
    small_convolutions._kernels_agree.cache_clear()
