"""Builds the one extension, `acmserve._native`, from `csrc/`, and keeps links in the sdist. The rest: pyproject.toml.

No -march flag: the loops that need AVX2 are compiled twice and chosen at run time (csrc/isa.hpp), so one wheel serves
every x86-64 machine.

Images that serve on GPUs often have no compiler, and need no kernel for a CPU. Where none is found, acmserve installs
without the extension: plans are matched by numpy, and `acmserve doctor` says what is missing. A compiler that fails
still stops the build.
"""

import os
import shlex
import shutil
import sysconfig
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup
from setuptools.command.sdist import sdist

LINKS = {"acmserve/bench": "../benchmarks", "acmserve/kernels": "../kernels/ops"}


class SdistWithLinks(sdist):
    """Writes links as links, so that the archive holds each file once, as the checkout does.

    Setuptools skips what is no regular file, and would otherwise put the files behind the links in twice.
    """

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Fill the folder that becomes the archive."""
        super().make_release_tree(base_dir, files)
        for link, target in LINKS.items():
            Path(base_dir, link).symlink_to(target)


if missing := [link for link in LINKS if not Path(link).is_dir()]:
    raise SystemExit(f"{' and '.join(missing)} must be a symbolic link; check out or unpack again where links work")

native = Pybind11Extension(
    "acmserve._native",
    sources=["csrc/module.cpp"],
    depends=sorted(str(path) for path in Path("csrc").glob("*.hpp")),
    cxx_std=17,
    extra_compile_args=["-O3", "-Wall", "-Wextra", "-pthread"],
    extra_link_args=["-pthread"],
)
compiler = shlex.split(os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++")[0]
has_compiler = shutil.which(compiler) is not None
if not has_compiler:
    print(f"acmserve is built without acmserve._native: no {compiler}. Set CXX, or install one, for kernels on a CPU.")

setup(
    ext_modules=[native] if has_compiler else [],
    cmdclass={"build_ext": build_ext, "sdist": SdistWithLinks},
)
