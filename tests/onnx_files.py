"""Small ONNX files made by hand, as other people's exporters might write them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHTS = np.array([4.0, -3.0, 1.5], np.float32)
BIAS = np.float32(-0.75)


def linear(
    path,
    *,
    size=(6, 8),
    batch="N",
    classes=1,
    last=False,
    activation="Sigmoid",
    opset=13,
    side_output=True,
    weights=WEIGHTS,
    bias=BIAS,
):
    """A network whose logit of class k is (k + 1) (4 red - 3 green + 1.5 blue - 0.75), and another output, `aside`.

    Args:
        path: The file.
        size: Height and width of the input, or names for free ones.
        batch: Length of the batch, or a name.
        classes: Channels of the output; 0 for an output (B, H, W).
        last: The input is (B, H, W, 3).
        activation: Sigmoid, Softmax or none.
        opset: Version of the operators.
        side_output: Whether a second output is computed from the first.
        weights, bias: Numbers in place of those above.
    """
    channels = max(classes, 1)
    kernel = np.stack([(k + 1) * weights for k in range(channels)]).reshape(channels, 3, 1, 1)
    biases = np.array([(k + 1) * bias for k in range(channels)], np.float32)
    nodes = [helper.make_node("Transpose", ["images"], ["planes"], perm=[0, 3, 1, 2])] if last else []
    nodes.append(helper.make_node("Conv", ["planes" if last else "images", "kernel", "bias"], ["logits"]))
    end = "logits"
    if activation == "Softmax":
        nodes.append(helper.make_node("Softmax", ["logits"], ["activated"], axis=1))
    elif activation:
        nodes.append(helper.make_node(activation, ["logits"], ["activated"]))
    if activation:
        end = "activated"
    if classes == 0:
        nodes.append(helper.make_node("Reshape", [end, "plane"], ["maps"]))
    else:
        nodes.append(helper.make_node("Identity", [end], ["maps"]))
    shape = [batch, *size] if classes == 0 else [batch, channels, *size]
    outputs = [helper.make_tensor_value_info("maps", TensorProto.FLOAT, shape)]
    if side_output:
        nodes.append(helper.make_node("Neg", ["maps"], ["aside"]))
        outputs.append(helper.make_tensor_value_info("aside", TensorProto.FLOAT, shape))
    constants = [numpy_helper.from_array(kernel, "kernel"), numpy_helper.from_array(biases, "bias")]
    if classes == 0:
        constants.append(numpy_helper.from_array(np.array([-1, *size], np.int64), "plane"))
    images = [batch, *size, 3] if last else [batch, 3, *size]
    graph = helper.make_graph(
        nodes, "linear", [helper.make_tensor_value_info("images", TensorProto.FLOAT, images)], outputs, constants
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return path


def logits(x):
    """The logit of class 0 for inputs (..., 3), in float64."""
    return x.astype(np.float64) @ WEIGHTS.astype(np.float64) + float(BIAS)


def conv_onnx(path, side="D", batch="N", channels=1):
    """A network of volumes: three classes whose logits are multiples of the first channel."""
    kernel = np.zeros((3, channels, 1, 1, 1), np.float32)
    kernel[:, 0] = np.array([1.0, -2.0, 0.5], np.float32).reshape(3, 1, 1, 1)
    sides = [side] * 3 if isinstance(side, int) else ["D", "H", "W"]
    graph = helper.make_graph(
        [helper.make_node("Conv", ["scan", "kernel"], ["maps"])],
        "volumes",
        [helper.make_tensor_value_info("scan", TensorProto.FLOAT, [batch, channels, *sides])],
        [helper.make_tensor_value_info("maps", TensorProto.FLOAT, [batch, 3, *sides])],
        [numpy_helper.from_array(kernel, "kernel")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
