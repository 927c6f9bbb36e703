"""`make examples`: every example and adapter by our server, in environments that have the wheel and no vLLM.

The environments are those of `make clients`, with the wheel in them. It is built without a compiler, so any machine can
install it. mypy and pyright check the client there as the user of a framework does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from acmserve.client import SessionHandle
from tests.support.archives import build, copy_tracked
from tests.support.client.examples import (
    EXAMPLES,
    check_agents_sdk,
    check_langgraph,
    engine_parts,
    run_example,
    run_program,
)
from tests.support.clients.conversation import write_errand
from tests.support.clients.installed import (
    AGENTS_SDK,
    CLIENTS,
    LANGGRAPH,
    LITELLM,
    MONITOR,
    OPENAI,
    PYRIGHT,
    Package,
    command_failure,
    install_failure,
)

pytestmark = pytest.mark.skipif(
    not os.environ.get("ACMSERVE_EXAMPLES"), reason="`make examples` installs frameworks from registries"
)

ADAPTERS = "acmserve.client.adapters"
PROGRAMS = EXAMPLES.parent / "tests" / "support" / "client" / "programs"
WITH_OPENAI = tuple(EXAMPLES / f"{name}.py" for name in ("plain_loop", "coding_agent", "research_agent"))
NEEDED = ("httpx>=0.27", "mypy==2.4.1")
"""What is put beside the wheel. Nothing else of what acmserve depends on is."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = copy_tracked(tmp_path_factory.mktemp("tree"))
    return build("build_wheel", tree, tmp_path_factory.mktemp("wheel"), CXX="no-such-compiler")


def prepared(package: Package, wheel: Path, *needed: str) -> str:
    """The interpreter of an environment with the package and the wheel."""
    assert install_failure(package) is None
    for asked in (needed or NEEDED, ("--no-deps", "--force-reinstall", str(wheel))):
        assert command_failure(package.pip(*asked)) is None
    python = str(package.program("python"))
    assert engine_parts(python) == []
    return python


def check_types(python: str, *sources: Path | str, folder: Path) -> None:
    """As a user does: strictly, from outside of the checkout, against what is installed. A text names a module."""
    command = [python, "-m", "mypy", "--strict", "--follow-imports", "silent", "--cache-dir", str(folder / "mypy")]
    for source in sources:
        named = ["-m", source] if isinstance(source, str) else [str(source)]
        done = subprocess.run([*command, *named], capture_output=True, text=True, check=False, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr


def test_examples_that_need_openais_client_alone(wheel: Path, errands: str, tmp_path: Path) -> None:
    python = prepared(OPENAI, wheel)
    for errand in (1, 2, 3):
        write_errand(tmp_path, errand, 4)
    plain = run_example("plain_loop", errands, "errand 1: 4 steps", folder=tmp_path, python=python)
    assert plain.rstrip().endswith("Errand 1 is done.")
    ideas = ("errand 2: 1 steps", "errand 3: 2 steps")
    coding = run_example("coding_agent", errands, "Hello.", "test -e errand-2", *ideas, folder=tmp_path, python=python)
    assert "idea 1 passed:" in coding
    asked = (str(tmp_path), "errand 2: 2 steps", "And the mill?")
    research = run_example("research_agent", errands, *asked, folder=tmp_path, python=python)
    assert research.count(f"map {tmp_path.name}: version ") == 2
    check_types(python, *WITH_OPENAI, folder=tmp_path)


def test_pyright_finds_what_mypy_finds(wheel: Path, tmp_path: Path) -> None:
    """The same programs in strict mode. A wrong call is the control."""
    prepared(OPENAI, wheel)
    assert install_failure(PYRIGHT) is None
    for file in WITH_OPENAI:
        shutil.copy(file, tmp_path)
    config = {"typeCheckingMode": "strict", "venvPath": str(CLIENTS), "venv": OPENAI.folder}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [str(PYRIGHT.program("pyright")), "--project", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    (tmp_path / "wrong.py").write_text("from acmserve.client import ServerHandle\nServerHandle('u').usage('3')\n")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.count("error:")) == (1, 1), done.stdout


def test_langgraph_clears_and_branches(wheel: Path, errands: str, tmp_path: Path) -> None:
    python = prepared(LANGGRAPH, wheel)
    check_langgraph(errands, tmp_path, python)
    names = (EXAMPLES / "langgraph_clearing.py", PROGRAMS / "langgraph_async.py", f"{ADAPTERS}.langgraph")
    check_types(python, *names, folder=tmp_path)
    later = run_program(PROGRAMS / "langgraph_async.py", errands, folder=tmp_path, python=python)
    assert later.split() == ["thread-async", "True", "None"]


@pytest.mark.parametrize("api", ["responses", "chat"])
def test_the_agents_sdk_has_receipts(wheel: Path, errands: str, tmp_path: Path, api: str) -> None:
    python = prepared(AGENTS_SDK, wheel)
    check_agents_sdk(errands, tmp_path, python, api)
    check_types(python, EXAMPLES / "agents_sdk_responses.py", f"{ADAPTERS}.agents_sdk", folder=tmp_path)


def test_litellm_calls_back_with_receipts(wheel: Path, errands: str, tmp_path: Path) -> None:
    python = prepared(LITELLM, wheel)
    printed = run_program(PROGRAMS / "litellm_receipts.py", errands, folder=tmp_path, python=python)
    assert printed.splitlines() == ["1 True", "1 True"]


def test_the_monitor_runs_on_what_the_wheel_asks_for(wheel: Path, errands: str, tmp_path: Path) -> None:
    prepared(MONITOR, wheel, str(wheel))
    with SessionHandle(errands, "monitored") as session:
        session.create([{"role": "user", "content": "Hello."}])
    command = [str(MONITOR.program("acmserve")), "top", errands, "--filter", "monitored"]
    told = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True, cwd=tmp_path).stdout)
    assert [one["session_id"] for one in told["sessions"]] == ["monitored"]
    table = subprocess.run([*command, "--once"], capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert len(table.splitlines()) == 2
