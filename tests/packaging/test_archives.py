"""The sdist is the checkout, and the wheel that is built from it holds the product, each file once.

Both are built by the hooks that pip calls, without network, in a copy of what git tracks. The wheel is a whole one: the
extension compiles in about 15 seconds. Its manylinux tag comes from `make wheel`, which needs packages of a registry.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from acmserve import __version__
from tests.support.archives import build, copy_tracked, run_hook
from tests.support.docs.pages import links_of, page_names, read_page

ROOT = Path(__file__).parents[2]
LINKS = {"acmserve/bench": "../benchmarks", "acmserve/kernels": "../kernels/ops"}
GENERATED = {"PKG-INFO", "setup.cfg"}
DATA = {
    "acmserve/_native.pyi",
    "acmserve/bench/demo/conversation.json",
    "acmserve/bench/learner/folding_suite.json",
    "acmserve/bench/eval/terminal/tasks.json",
    "acmserve/context/suites/branch.json",
    "acmserve/context/suites/cwl.json",
    "acmserve/context/suites/sculptor-paper.json",
    "acmserve/context/suites/sculptor-v1.json",
    "acmserve/context/suites/sculptor.json",
    "acmserve/models/chatml_tools.jinja",
    "acmserve/py.typed",
}

pytestmark = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="compares archives with what git tracks")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tracked files as they are now."""
    return copy_tracked(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, unpacked as pip does it."""
    archive = build("build_sdist", checkout, tmp_path_factory.mktemp("sdist"))
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return root


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return zipfile.ZipFile(build("build_wheel", sdist, tmp_path_factory.mktemp("wheel")))


def files_of(folder: Path) -> set[str]:
    """Files and links to folders, without what lies behind such a link, and without what a build leaves behind."""
    found = (path for path in folder.rglob("*") if path.is_symlink() or path.is_file())
    return {path.relative_to(folder).as_posix() for path in found if path.parent.suffix != ".egg-info"}


def page_of(checkout: Path) -> set[str]:
    """The files of the inspector, which the server reads from where it is installed."""
    folder = checkout / "acmserve/server/inspector/static"
    found = {path.relative_to(checkout).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert "acmserve/server/inspector/static/index.html" in found
    return found


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    return Parser().parsestr(wheel.read(f"acmserve-{__version__}.dist-info/METADATA").decode())


def test_the_sdist_is_the_checkout(checkout: Path, sdist: Path) -> None:
    assert files_of(sdist) - files_of(checkout) == GENERATED
    assert files_of(checkout) - files_of(sdist) == set()


def test_links_are_links_in_the_sdist(sdist: Path) -> None:
    links = {path.relative_to(sdist).as_posix(): path for path in sdist.rglob("*") if path.is_symlink()}
    assert {name: os.readlink(path) for name, path in links.items()} == LINKS
    assert all((path / "__init__.py").is_file() for path in links.values())


def test_what_the_pages_link_to_is_in_the_sdist(sdist: Path) -> None:
    links = [(name, link) for name in page_names() for link in links_of(read_page(name)) if "://" not in link]
    targets = [(name, link.partition("#")[0]) for name, link in links]
    assert ("README.md", "benchmarks/LOG.md") in targets
    assert [(name, path) for name, path in targets if not ((sdist / name).parent / path).exists()] == []


def test_the_wheel_holds_each_file_of_the_product_once(checkout: Path, wheel: zipfile.ZipFile) -> None:
    expected = {
        f"{place}/{path.relative_to(folder).as_posix()}"
        for place, folder in {place: (checkout / place).resolve() for place in ("acmserve", *LINKS)}.items()
        for path in folder.rglob("*.py")
    }
    names = [name for name in wheel.namelist() if not name.startswith(f"acmserve-{__version__}.dist-info/")]
    (extension,) = (name for name in names if name.endswith(".so"))
    assert extension.startswith("acmserve/_native.")
    assert sorted(names) == sorted({*expected, *DATA, *page_of(checkout), extension})
    assert {"acmserve/kernels/rope.py", "acmserve/bench/edit/main.py"} <= set(names)


def test_the_wheel_names_extras_and_urls(wheel: zipfile.ZipFile) -> None:
    metadata = metadata_of(wheel)
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == "Apache-2.0"
    assert {"cpu", "gpu", "bench", "semantic"} <= set(metadata.get_all("Provides-Extra", []))
    assert metadata.get_all("Project-URL")


def test_without_a_compiler_the_wheel_lacks_the_extension_alone(checkout: Path, tmp_path: Path) -> None:
    """And the product works with it: matches come from numpy, and the kernel says why it is missing."""
    (tmp_path / "wheel").mkdir()
    tree = shutil.copytree(checkout, tmp_path / "tree", symlinks=True)
    made = zipfile.ZipFile(build("build_wheel", tree, tmp_path / "wheel", CXX="no-such-compiler"))
    assert not [name for name in made.namelist() if name.endswith(".so")]
    made.extractall(tmp_path / "site")
    code = (
        # Where acmserve is installed from its checkout, a finder knows the extension that was built there.
        "import sys; sys.meta_path = [finder for finder in sys.meta_path if 'editable' not in str(finder).lower()]; "
        "import acmserve.plan.match as match, acmserve.kernels.dispatch as dispatch, numpy as np; "
        "print(match.__file__, match._native, dispatch.available()['cpu'].detail); "
        "print(match.common_prefix(np.array([1, 2, 3], np.int32), np.array([1, 2, 4], np.int32)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "site", capture_output=True, text=True, check=True
    )
    where, prefix = done.stdout.splitlines()
    assert where.startswith(str(tmp_path / "site"))
    assert " None acmserve._native is not built" in where
    assert prefix == "2"


def test_a_compiler_that_fails_stops_the_build(checkout: Path, tmp_path: Path) -> None:
    """The control: an extension that is there to be built is never left out in silence."""
    tree = shutil.copytree(checkout, tmp_path / "tree", symlinks=True)
    done = run_hook(f"build_wheel({str(tmp_path)!r})", tree, CC="false", CXX="false")
    assert done.returncode != 0
    assert "false" in done.stderr


@pytest.mark.parametrize("link", LINKS)
def test_a_tree_that_lost_a_link_is_refused_by_name(link: str, checkout: Path, tmp_path: Path) -> None:
    """Without links a build would go on, and the wheel would lack the folder."""
    tree = shutil.copytree(checkout, tmp_path / "tree", symlinks=True)
    (tree / link).unlink()
    (tree / link).write_text(LINKS[link], encoding="utf-8")
    done = run_hook("get_requires_for_build_wheel()", tree)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"{link} must be a symbolic link")
