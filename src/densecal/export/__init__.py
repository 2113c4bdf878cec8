"""A model and its calibrator in one ONNX file: networks of this library, and anybody's ONNX files."""

from densecal.export.comparison import TOLERANCE, Comparison, ExportError, compare, pictures
from densecal.export.graph import Folded, fold_calibrator
from densecal.export.network import Export, export_model, export_run

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
