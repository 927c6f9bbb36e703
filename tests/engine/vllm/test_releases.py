"""Every release that acmserve calls tested: seams, behaviours, simulator and audit, and engines where there are some.

`make vllm-matrix` runs it. The suite itself runs on the installed release.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from acmserve.engine.vllm.version import TESTED_VLLM
from tests.support.vllm_release import Release, unpack

pytestmark = pytest.mark.skipif("ACMSERVE_RELEASES" not in os.environ, reason="downloads vLLM: `make vllm-matrix`")

FOR_CPU = {"0.31.": True, "0.32.": True, "0.33.": False}
"""The registry has no build for CPUs of the newest."""
NEEDS = {"0.33.": ("orjson",)}
NEWEST = "0.33.0"
SEAMS = ("tests/engine/vllm/test_seams.py", "tests/server/vllm/test_seams.py")
ENGINES = (
    *("tests/engine/test_oracle.py", "tests/engine/test_smollm2.py"),
    *("tests/engine/vllm/test_hole_passes.py", "tests/server/app/test_http.py"),
    *("tests/server/vllm/test_message_usage.py", "tests/server/messages/test_from_chat.py"),
)


@pytest.fixture(params=TESTED_VLLM, scope="module")
def release(request: pytest.FixtureRequest) -> Release:
    return unpack(f"{request.param}0", for_cpu=FOR_CPU[request.param], needs=NEEDS.get(request.param, ()))


def num_passed(release: Release, *arguments: str) -> int:
    done = release.run_tests(*arguments)
    assert done.returncode == 0, done.stdout[-6000:]
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])


def test_the_release_stands_in_front_of_the_installed_one(release: Release) -> None:
    code = (
        "import vllm; from acmserve.engine.vllm.version import engine_version; print(vllm.__file__, engine_version())"
    )
    done = release.run("-c", code)
    assert str(release.folder) in done.stdout, done.stderr
    assert f"'{release.version}" in done.stdout


def test_seams(release: Release) -> None:
    assert num_passed(release, *SEAMS) > 150


def test_behaviours(release: Release) -> None:
    assert num_passed(release, "tests/engine/vllm/test_behaviours.py") > 8


def test_simulator_in_all_modes_with_its_controls(release: Release) -> None:
    assert num_passed(release, "--numprocesses", "2", "tests/simulator") > 200


def test_audit_of_decoder_classes(release: Release) -> None:
    assert num_passed(release, "tests/engine/test_audit.py") >= 6


def test_engines(release: Release) -> None:
    assert num_passed(release, *ENGINES) > 40


@pytest.fixture
def broken(tmp_path: Path) -> Release:
    """The newest release with one method renamed: the plugin must be off there, and name it."""
    folder = tmp_path / "broken"
    shutil.copytree(unpack(NEWEST, for_cpu=False, needs=NEEDS["0.33."]).folder, folder)
    scheduler = folder / "vllm" / "v1" / "core" / "sched" / "scheduler.py"
    scheduler.write_text(scheduler.read_text().replace("_preempt_request(", "_preempt_one("))
    return Release(NEWEST, folder, is_whole=False)


def test_a_broken_seam_is_named(broken: Release) -> None:
    done = broken.run_tests("tests/engine/vllm/test_seams.py::test_the_installed_engine_has_every_seam")
    assert done.returncode == 1
    assert "Scheduler._preempt_request is gone" in done.stdout
