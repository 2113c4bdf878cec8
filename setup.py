"""The parts of the package that are compiled: without a compiler they are left out; NumPy and Pillow do their work."""

import os
import sys

from setuptools import Extension, setup

# the same operations in the same order as NumPy: no contraction of multiplications and additions; nobody asks whether
# an operation raised a floating-point flag, so that loops with conditions may be vectorized
OPTIONS = ["/O2"] if sys.platform == "win32" else ["-O3", "-std=c11", "-ffp-contract=off", "-fno-trapping-math"]

METRICS = "src/densecal/metrics/"
EXTENSIONS = [
    Extension(
        "densecal.metrics._native",
        [METRICS + name for name in ("_native.c", "_float_tables.c", "_class_tables.c", "_class_order.c")],
        depends=[METRICS + "_native.h", METRICS + "_class_blocks.h"],
        extra_compile_args=OPTIONS,
        py_limited_api=True,
        optional=True,
    ),
    Extension(
        "densecal.io._png",
        ["src/densecal/io/_png.c"],
        extra_compile_args=OPTIONS,
        py_limited_api=True,
        optional=True,
    ),
]

if os.environ.get("DENSECAL_PURE"):  # the wheel for systems that have none of their own
    setup()
else:
    setup(ext_modules=EXTENSIONS, options={"bdist_wheel": {"py_limited_api": "cp311"}})
