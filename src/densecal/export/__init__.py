"""A model and its calibrator in one ONNX file: networks of this library, and anybody's ONNX files."""

from densecal.export.graph import Folded, fold_calibrator
from densecal.export.network import (
    TOLERANCE,
    Comparison,
    Export,
    ExportError,
    compare,
    export_model,
    export_run,
    pictures,
)

__all__ = [
    "TOLERANCE",
    "Comparison",
    "Export",
    "ExportError",
    "Folded",
    "compare",
    "export_model",
    "export_run",
    "fold_calibrator",
    "pictures",
]
