"""Calibrators in other tools: ONNX, `torch.export` and copies."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from densecal.posthoc import create

from .common import class_batches, crooked, histogram_of

ONE_LOGIT = ["temperature", "platt", "isotonic", "histogram", "beta", "class-temperature", "ensemble-temperature"]
ONE_LOGIT += ["spline", "venn-abers", "prior-shift", "local-temperature", "selective"]
K_CLASSES = ["vector", "matrix", "dirichlet", "class-matrix", "argmax-preserving", "order-preserving"]
CASES = ONE_LOGIT + K_CLASSES
FAST = ["isotonic"]
"""An export takes seconds; this calibrator has the operations that are hardest to export."""
SLOW = sorted(set(CASES) - set(FAST))


def fitted_calibrator(name):
    """Return a calibrator whose parameters are not the initial ones."""
    if name in K_CLASSES:
        return create(name, num_classes=3).fit(lambda: class_batches(classes=3))
    calibrator = create(name)
    if not calibrator.needs_images:
        return calibrator.fit(histogram_of(*crooked(3000)))
    generator = torch.Generator().manual_seed(0)
    for parameter in calibrator.parameters():
        parameter.data.normal_(generator=generator).mul_(0.1)
    return calibrator


class Model(nn.Module):
    """A network followed by its calibrator, as in an exported model."""

    def __init__(self, calibrator):
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Conv2d(3, calibrator.num_classes, 3, padding=1)
        self.calibrator = calibrator.as_module()

    def forward(self, images):
        return self.calibrator(5 * self.head(images), images)


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_onnx_gives_the_same_probabilities_at_any_size(name, tmp_path):
    import onnxruntime as ort

    model = Model(fitted_calibrator(name)).eval()
    side = {0: torch.export.Dim("b", min=1, max=64)}
    side |= {2: torch.export.Dim("h", min=8, max=4096), 3: torch.export.Dim("w", min=8, max=4096)}
    torch.onnx.export(
        model, (torch.rand(2, 3, 16, 20),), tmp_path / "m.onnx", dynamo=True, dynamic_shapes=(side,), verbose=False
    )
    session = ort.InferenceSession(tmp_path / "m.onnx")
    for shape in ((2, 3, 16, 20), (1, 3, 33, 17)):
        images = torch.rand(shape)
        (theirs,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
        ours = model(images).detach().numpy()
        different = np.abs(theirs - ours) > 2e-5
        # A pixel on the edge of a step may fall on the other side.
        assert different.mean() <= (0.005 if name in ("histogram", "selective") else 0)


@pytest.mark.parametrize("name", CASES)
def test_a_calibrator_is_a_module_like_any_other(name):
    """`torch.export` refuses code that reads a value on the host."""
    calibrator = fitted_calibrator(name).as_module()
    logits, images = torch.randn(2, calibrator.num_classes, 12, 9), torch.rand(2, 3, 12, 9)
    assert torch.equal(copy.deepcopy(calibrator)(logits, images), calibrator(logits, images))
    assert not any(parameter.requires_grad for parameter in calibrator.parameters())
    traced = torch.export.export(calibrator, (logits, images))
    assert torch.allclose(traced.module()(logits, images), calibrator(logits, images), atol=1e-6)
