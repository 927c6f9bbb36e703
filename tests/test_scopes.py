"""Which tests run in one process of xdist: those that share a server or an engine, and no others beside them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import conftest as suite
from tests.conftest import ALONE, SCOPES, check_scope, ending_behind, rank_of, scope_of

ROOT = Path(__file__).parents[1]
HOOKED = """
import pytest
from tests import conftest as suite

ENDED = []
suite.scope_of = lambda nodeid: nodeid.partition("::")[0].removeprefix("test_").removesuffix(".py")
pytest_runtest_teardown = suite.pytest_runtest_teardown

@pytest.fixture(scope="session")
def smollm2_engine():
    yield ENDED
    ENDED.append("the engine")
"""


def test_tests_that_share_an_id_are_refused() -> None:
    config: Any = SimpleNamespace()
    one, other, twin = (SimpleNamespace(nodeid=f"tests/a.py::test_{name}") for name in ("it", "more", "it"))
    items: list[Any] = [one, other]
    suite.pytest_collection_modifyitems(config, items)
    with pytest.raises(pytest.UsageError, match="1 ids are those of several tests"):
        suite.pytest_collection_modifyitems(config, [*items, twin])


@pytest.mark.parametrize(
    ("nodeid", "scope"),
    [
        ("tests/server/chat/test_loop.py::test_it[a::b]", "scripted_server"),
        ("tests/server/app/test_real_model.py::test_it", "server"),
        ("tests/server/app/test_restart.py::test_it", "tests/server/app/test_restart.py"),
        ("tests/server/routes/test_maps.py::test_it", "tests/server/routes/test_maps.py"),
        ("tests/engine/test_fidelity.py::test_it", "smollm2_engine"),
        ("tests/engine/test_oracle.py::test_it", "tests/engine/test_oracle.py"),
    ],
)
def test_a_test_runs_with_those_that_share_its_server(nodeid: str, scope: str) -> None:
    assert scope_of(nodeid) == scope


def test_what_a_scope_shares_ends_behind_its_last_test() -> None:
    last, other = "tests/engine/test_canary.py::test_it", "tests/engine/test_oracle.py::test_it"
    assert ending_behind(last, other) == ("stock_engine", "smollm2_engine")
    assert ending_behind(last, "tests/engine/test_fidelity.py::test_it") == ()
    assert ending_behind(other, last) == ()
    assert ending_behind("tests/server/chat/test_loop.py::test_it", last) == ("scripted_server",)


def test_an_engine_has_ended_where_another_scope_runs(tmp_path: Path) -> None:
    """Two files of one process of xdist, with the hook of this suite: the second finds the first one's engine ended."""
    (tmp_path / "conftest.py").write_text(HOOKED)
    for scope, test in (("smollm2_engine", "assert smollm2_engine == []"), ("other", "assert ENDED == ['the engine']")):
        fixture = "smollm2_engine" if scope == "smollm2_engine" else ""
        (tmp_path / f"test_{scope}.py").write_text(f"from conftest import ENDED\ndef test_it({fixture}):\n    {test}\n")
    files = [str(tmp_path / f"test_{name}.py") for name in ("smollm2_engine", "other")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-n", "1"]
    environ = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([*command, *files], cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_every_listed_place_exists() -> None:
    listed = [*ALONE, *(place for places in SCOPES.values() for place in places)]
    assert [place for place in listed if not (ROOT / place).exists()] == []


def test_a_second_start_of_a_shared_server_is_refused() -> None:
    check_scope("server", "tests/a.py::test_it", ["server", "tmp_path"])
    with pytest.raises(pytest.UsageError, match=r"tests/a\.py::test_it uses server"):
        check_scope("tests/a.py", "tests/a.py::test_it", ["server", "tmp_path"])


def test_what_is_shared_starts_first() -> None:
    first = [*SCOPES, "tests/server/launch/test_api_servers.py"]
    others = ["tests/plan/test_match.py", "tests/engine/test_leak.py"]
    assert sorted([*others, *reversed(first)], key=rank_of)[: len(first)] == first
    assert rank_of("tests/engine/test_leak.py") < rank_of("tests/plan/test_match.py")
