"""ONNX files from strangers: weights are read from the file or its folder, and nothing else is read."""

import os
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from densecal.errors import InputError
from densecal.prediction.onnx_model import load_onnx

SETTINGS = "size: [8, 8]\nmean: [0.5, 0.5, 0.5]\nstd: [0.5, 0.5, 0.5]\n"


def write_network(path: Path, weights: str | None) -> Path:
    """Write a network whose weights are in another file, if one is named."""
    w = numpy_helper.from_array(np.ones((1, 3, 1, 1), np.float32), "w")
    if weights is not None:
        w.ClearField("raw_data")
        w.data_location = TensorProto.EXTERNAL
        for key, value in (("location", weights), ("offset", "0"), ("length", "12")):
            entry = w.external_data.add()
            entry.key, entry.value = key, value
    nodes = [helper.make_node("Conv", ["x", "w"], ["z"]), helper.make_node("Sigmoid", ["z"], ["y"])]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", c, 8, 8]) for n, c in (("x", 3), ("y", 1)))
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y], [w]), opset_imports=opsets, ir_version=8)
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("weights", ["../secret.bin", "{absolute}", "pipe", "zero"])
def test_weights_outside_the_folder_and_special_files_are_refused_in_one_line(tmp_path, weights):
    folder = tmp_path / "model"
    folder.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(12))
    os.mkfifo(folder / "pipe")
    (folder / "zero").symlink_to("/dev/zero")
    (folder / "steps.yaml").write_text(SETTINGS)
    assert load_onnx(write_network(folder / "a.onnx", None), str(folder / "steps.yaml")).classes == 1
    network = write_network(folder / "a.onnx", weights.format(absolute=tmp_path / "secret.bin"))
    with pytest.raises(InputError, match="expected an ONNX file that onnxruntime can run") as refused:
        load_onnx(network, str(folder / "steps.yaml"))
    assert "\n" not in str(refused.value)
