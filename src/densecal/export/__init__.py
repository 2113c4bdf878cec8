"""A model and its calibrator in one ONNX file: networks of this library, and ONNX files of any origin."""

from densecal.export.comparison import TOLERANCE, Comparison, ExportError, compare, pictures
from densecal.export.graph import CalibratedFile, fold_calibrator
from densecal.export.network import Export, export_model, export_run

__all__ = [
    "TOLERANCE",
    "CalibratedFile",
    "Comparison",
    "Export",
    "ExportError",
    "compare",
    "export_model",
    "export_run",
    "fold_calibrator",
    "pictures",
]
