"""Every example by a real server, in an environment that has no vLLM.

`make test` makes it, with the frameworks of the last two. Elsewhere these two are skipped, and the others run in this
Python, where vLLM cannot be imported. `make examples` does more: the wheel itself, LiteLLM, and types.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.support.client.examples import (
    EXAMPLES,
    FRAMEWORKS,
    check_agents_sdk,
    check_langgraph,
    engine_parts,
    run_example,
)
from tests.support.clients.conversation import write_errand

PYTHON = str(FRAMEWORKS) if FRAMEWORKS.exists() else sys.executable
NEEDS_FRAMEWORKS = pytest.mark.skipif(not FRAMEWORKS.exists(), reason="`make test` installs the frameworks")


def test_a_plain_loop_folds_what_it_has_read(scripted_server: str, tmp_path: Path) -> None:
    write_errand(tmp_path, 3, 5)
    printed = run_example("plain_loop", scripted_server, "Please do errand 3: 5 steps", folder=tmp_path, python=PYTHON)
    assert printed.rstrip().endswith("Errand 3 is done.")
    receipts = re.findall(r"prompt (\d+): kept (\d+), moved (\d+), computed (\d+)", printed)
    assert len(receipts) == 6
    assert all(int(prompt) == int(kept) + int(moved) + int(computed) for prompt, kept, moved, computed in receipts)
    assert printed.count("folded 1:") == 2
    assert max(int(moved) for _, _, moved, _ in receipts) > 100


def test_a_coding_agent_goes_on_with_the_branch_that_passes(scripted_server: str, tmp_path: Path) -> None:
    for errand in (1, 2, 3):
        write_errand(tmp_path, errand, 2)
    printed = run_example(
        "coding_agent",
        scripted_server,
        "Look around: errand 1: 2 steps",
        "test -e errand-3/step-2.txt",
        "errand 2: 1 steps",
        "errand 3: 2 steps",
        folder=tmp_path,
        python=PYTHON,
    )
    assert "Errand 1 is done." in printed
    assert "idea 1 passed:" in printed
    kept = re.findall(r"^(\S+): (\d+) of (\d+) tokens kept", printed, re.MULTILINE)
    assert len({session for session, _, _ in kept}) == 3
    assert all(int(num_kept) > 0 for _, num_kept, _ in kept[1:])


def test_a_research_agent_reads_its_map(scripted_server: str, tmp_path: Path) -> None:
    write_errand(tmp_path, 4, 2)
    asked = ("Please do errand 4: 2 steps", "What is the river like?")
    printed = run_example("research_agent", scripted_server, str(tmp_path), *asked, folder=tmp_path, python=PYTHON)
    assert "Errand 4 is done." in printed
    assert printed.count(f"map {tmp_path.name}: version ") == 2


@NEEDS_FRAMEWORKS
def test_langgraph_clears_and_branches(scripted_server: str, tmp_path: Path) -> None:
    check_langgraph(scripted_server, tmp_path, PYTHON)


@NEEDS_FRAMEWORKS
def test_the_agents_sdk_has_receipts_over_responses(scripted_server: str, tmp_path: Path) -> None:
    check_agents_sdk(scripted_server, tmp_path, PYTHON, "responses")


@NEEDS_FRAMEWORKS
def test_the_environment_has_no_engine() -> None:
    assert engine_parts(PYTHON) == []
    assert engine_parts(sys.executable) == ["vllm", "torch"], "the control"


def test_every_example_is_run_here() -> None:
    text = Path(__file__).read_text(encoding="utf-8") + Path(str(run_example.__code__.co_filename)).read_text("utf-8")
    assert {file.stem for file in EXAMPLES.glob("*.py")} <= set(re.findall(r'run_example\(\s*"(\w+)"', text))
