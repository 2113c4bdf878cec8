"""Our depth-wise convolutions compute the same as PyTorch's. Here the kernels run in Triton's interpreter."""

import copy
from pathlib import Path

import pytest
import torch
from timm.layers import Conv2dSame
from torch import nn

from densecal.kernels import depthwise
from densecal.kernels.depthwise import replace_depthwise
from tests.running import interpreted


@pytest.fixture(scope="module")
def output():
    return interpreted(Path(__file__).with_name("depthwise_check.py"))


# the interpreter truncates to bfloat16 where a device rounds
@pytest.mark.parametrize(("precision", "unit"), [("float32", 2e-6), ("bfloat16", 2**-7), ("float16", 2**-11)])
def test_layers_agree_with_pytorch_in_float64(output, precision, unit):
    for layer in output[precision]:
        assert max(layer["output"], layer["dx"]) <= unit, layer
        assert max(layer["dweight"], layer.get("dbias", 0)) < 2e-5, layer


def test_a_network_learns_the_same_and_predicts_as_before(output):
    network = output["network"]
    assert network["convolutions"] == 5
    assert network["output"] < 1e-5
    assert network["gradient"] < 1e-4
    assert network["evaluation"] == 0


def test_wrong_kernels_are_not_used(output):
    assert output["warning"] == "depth-wise kernels disagree with PyTorch on cpu: PyTorch's are used"


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(6, 6, 3, padding=1),
        nn.Conv2d(6, 6, 3, padding=1, groups=3),
        nn.Conv2d(6, 12, 3, padding=1, groups=6),
        nn.Conv2d(1, 1, 3, padding=1),
        nn.Conv2d(6, 6, 1, groups=6),
        nn.Conv2d(6, 6, (3, 5), groups=6),
        nn.Conv2d(6, 6, 3, (1, 2), groups=6),
        nn.Conv2d(6, 6, 3, 3, groups=6),
        nn.Conv2d(6, 6, 3, dilation=2, groups=6),
        nn.Conv2d(6, 6, 3, padding="same", groups=6),
        nn.Conv2d(6, 6, 3, padding=1, padding_mode="reflect", groups=6),
        nn.ConvTranspose2d(6, 6, 3, groups=6),
    ],
    ids=str,
)
def test_other_convolutions_are_left_alone(conv):
    replace_depthwise(conv)
    assert "forward" not in vars(conv)


@pytest.mark.parametrize("conv", [nn.Conv2d(6, 6, 3, padding=1, groups=6), Conv2dSame(6, 6, 5, 2, groups=6)], ids=str)
def test_on_a_cpu_nothing_changes(conv):
    replaced = copy.deepcopy(conv)
    replace_depthwise(replaced)
    x = torch.randn(2, 6, 7, 8)
    assert torch.equal(replaced(x), conv(x))
    assert torch.equal(replaced(x[0]), conv(x[0]))
    with pytest.raises(RuntimeError, match="channels"):
        replaced(x[:, :4])


def test_kernels_that_cannot_be_compiled_are_not_used(monkeypatch):
    monkeypatch.setattr(depthwise, "_DEVICES", ("cpu",))

    def refuse(*_):
        raise RuntimeError("no compiler")

    monkeypatch.setattr(depthwise, "_run_convolution", refuse)
    depthwise._kernels_agree.cache_clear()
    conv = nn.Conv2d(6, 6, 3, padding=1, groups=6)
    x = torch.randn(2, 6, 7, 8)
    expected = conv(x)
    replace_depthwise(conv)
    with pytest.warns(UserWarning, match=r"depth-wise kernels fail \(no compiler\) on cpu: PyTorch's are used"):
        assert torch.equal(conv(x), expected)
    depthwise._kernels_agree.cache_clear()


def test_only_the_output_is_tested_for_prediction(monkeypatch):
    monkeypatch.setattr(depthwise, "_DEVICES", ("cpu",))
    gradients = []
    monkeypatch.setattr(depthwise, "agree", lambda *arguments: gradients.append(arguments[4]))
    depthwise._kernels_agree.cache_clear()
    conv = nn.Conv2d(6, 6, 3, padding=1, groups=6)
    replace_depthwise(conv)
    x = torch.randn(2, 6, 7, 8)
    with torch.inference_mode():
        conv(x)
    conv(x)
    assert [gradient is None for gradient in gradients] == [True, False]
    depthwise._kernels_agree.cache_clear()
