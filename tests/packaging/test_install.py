"""requirements/install.sh stops with a remedy when the machine lacks something. Nothing is installed here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def install(venv: Path, task: str = "packages", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "requirements/install.sh", task, str(venv)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_python_that_is_none_is_refused_with_the_way_to_name_another(tmp_path: Path) -> None:
    done = install(tmp_path / "venv", PYTHON="false")
    assert done.returncode == 1
    assert "PYTHON=false is not a Python from 3.11 to 3.14" in done.stderr
    assert "make setup PYTHON=" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_missing_compiler_is_named_with_its_package(tmp_path: Path) -> None:
    done = install(tmp_path / "venv", PYTHON=sys.executable, CXX="no-such-compiler")
    assert done.returncode == 1
    assert "'no-such-compiler' not found" in done.stderr
    assert "apt-get install g++" in done.stderr


def test_a_missing_library_is_named_with_its_package(tmp_path: Path) -> None:
    """A Python that has the versions and headers of this one, and finds no library."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *libnuma*) exit 1;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    done = install(tmp_path / "venv", PYTHON=str(python))
    assert done.returncode == 1
    assert "libnuma.so.1 not found" in done.stderr
    assert "apt-get install libnuma1" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_package_that_cannot_be_had_shows_the_log_and_a_remedy(tmp_path: Path) -> None:
    """No index and no folder of wheels: the first package, torch, cannot be found."""
    nowhere = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    done = install(tmp_path / "venv", PYTHON=sys.executable, **nowhere)
    assert done.returncode == 1
    assert "[3/5] installing torch==" in done.stderr
    assert "No matching distribution found for torch==" in done.stderr
    assert "setup failed: pip cannot find torch==" in done.stderr.splitlines()[-1]


def test_a_wheel_needs_its_tools_and_names_what_installs_them(tmp_path: Path) -> None:
    done = install(tmp_path / "venv", "wheel")
    assert done.returncode == 1
    assert done.stderr == (
        f"setup failed: no auditwheel in {tmp_path / 'venv'}; `make wheel` installs it from requirements/wheel.lock\n"
    )


def test_an_unknown_task_names_the_known_ones(tmp_path: Path) -> None:
    assert install(tmp_path, "whel").stderr == ("setup failed: unknown task 'whel'; use packages, build or wheel\n")
