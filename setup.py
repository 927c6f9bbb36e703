"""Builds the one extension, `acmserve._native`, from `csrc/`; everything else is in pyproject.toml.

No -march flag: the loops that need AVX2 are compiled twice and chosen at run time (csrc/isa.hpp), so one wheel serves
every x86-64 machine.
"""

from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup

setup(
    ext_modules=[
        Pybind11Extension(
            "acmserve._native",
            sources=["csrc/module.cpp"],
            depends=sorted(str(path) for path in Path("csrc").glob("*.hpp")),
            cxx_std=17,
            extra_compile_args=["-O3", "-Wall", "-Wextra", "-pthread"],
            extra_link_args=["-pthread"],
        )
    ],
    cmdclass={"build_ext": build_ext},
)
