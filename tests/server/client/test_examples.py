"""The examples that need OpenAI's client alone, by a real server. They run where vLLM cannot be imported.

The others need frameworks of their own: `make examples`.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.client.examples import run_example
from tests.support.clients.conversation import write_errand


def test_a_plain_loop_folds_what_it_has_read(scripted_server: str, tmp_path: Path) -> None:
    write_errand(tmp_path, 3, 5)
    printed = run_example("plain_loop", scripted_server, "Please do errand 3: 5 steps", folder=tmp_path)
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
    )
    assert "Errand 1 is done." in printed
    assert "idea 1 passed:" in printed
    kept = re.findall(r"^(\S+): (\d+) of (\d+) tokens kept", printed, re.MULTILINE)
    assert len({session for session, _, _ in kept}) == 3
    assert all(int(num_kept) > 0 for _, num_kept, _ in kept[1:])


def test_a_research_agent_reads_its_map(scripted_server: str, tmp_path: Path) -> None:
    write_errand(tmp_path, 4, 2)
    asked = ("Please do errand 4: 2 steps", "What is the river like?")
    printed = run_example("research_agent", scripted_server, str(tmp_path), *asked, folder=tmp_path)
    assert "Errand 4 is done." in printed
    assert printed.count(f"map {tmp_path.name}: version ") == 2
