"""The one part of the package that is compiled: without a compiler it is left out, and NumPy does its work."""

import os
import sys

from setuptools import Extension, setup

# the same operations in the same order as NumPy: no contraction of multiplications and additions
OPTIONS = ["/O2"] if sys.platform == "win32" else ["-O3", "-std=c11", "-ffp-contract=off"]

NATIVE = Extension(
    "densecal.metrics._native",
    ["src/densecal/metrics/_native.c", "src/densecal/metrics/_float_tables.c"],
    depends=["src/densecal/metrics/_native.h"],
    extra_compile_args=OPTIONS,
    py_limited_api=True,
    optional=True,
)

if os.environ.get("DENSECAL_PURE"):  # the wheel for systems that have none of their own
    setup()
else:
    setup(ext_modules=[NATIVE], options={"bdist_wheel": {"py_limited_api": "cp311"}})
