"""From a trained run to calibrated probabilities without PyTorch: `python examples/export_onnx.py RUN model.onnx`.

A temperature is fitted on the run's validation images and exported with the network. The file then needs only
onnxruntime and numpy.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime

from densecal import posthoc
from densecal.calibrate.fit import fit
from densecal.calibrate.runs import RunData
from densecal.export import export_run


def export_calibrated(run: Path, model: Path) -> None:
    """Do what `densecal calibrate fit temperature` and `densecal export --calibrator --input uint8` do."""
    fitted = fit("temperature", RunData(run, device="cpu"))
    with tempfile.TemporaryDirectory() as folder:
        calibrator = Path(folder) / "calibrator.json"
        posthoc.save(fitted.calibrator, calibrator)
        exported = export_run(run, model, calibrator, input="uint8")
    print(f"validation NLL {fitted.before.nll:.4f}, calibrated {fitted.after.nll:.4f}")
    print(f"{model}: largest difference from PyTorch {exported.difference:.1e}")


def predict(model: Path, image: np.ndarray) -> np.ndarray:
    """Return the calibrated foreground probabilities (H, W) of a uint8 image (H, W, 3) of the training size."""
    session = onnxruntime.InferenceSession(model)
    size = json.loads(session.get_modelmeta().custom_metadata_map["size"])
    assert image.shape == (size, size, 3), f"resize the image to {size} x {size} first"
    (probabilities,) = session.run(None, {"images": image.transpose(2, 0, 1)[None]})
    return probabilities[0, 0]


if __name__ == "__main__":
    run, model = map(Path, sys.argv[1:])
    export_calibrated(run, model)
    size = json.loads(onnxruntime.InferenceSession(model).get_modelmeta().custom_metadata_map["size"])
    image = np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8)
    p = predict(model, image)
    print(f"mean confidence {np.maximum(p, 1 - p).mean():.4f} on an image of noise")
