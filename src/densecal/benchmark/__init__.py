"""Benchmarks: methods x seeds x data sets x calibrators from one file. They can be resumed, and yield records."""

from densecal.benchmark.matrix import Matrix, load_matrix
from densecal.benchmark.summary import Row, Summary, results, summarise
from densecal.benchmark.workers import Event, open_tasks, run_benchmark

__all__ = ["Event", "Matrix", "Row", "Summary", "load_matrix", "open_tasks", "results", "run_benchmark", "summarise"]
