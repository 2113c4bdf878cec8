"""What a result shows of itself."""

import numpy as np

from densecal.metrics import calibration_errors


def test_a_result_is_printed_without_its_sketch():
    result = calibration_errors(np.array([0.9, 0.2]), np.array([1, 0]))
    assert "ece_ew=" in repr(result)
    assert "sketch" not in repr(result)
