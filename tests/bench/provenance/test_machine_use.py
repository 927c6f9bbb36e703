"""What a run took of the machine: work of its own and of its children is ours, and all else makes the machine busy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from acmserve.bench.harness.machine import cpu_of, describe_machine, widest_vectors
from acmserve.bench.provenance.code_state import commit_of
from acmserve.bench.provenance.machine_use import (
    MAX_OTHER_SHARE,
    ProcessorTimes,
    busy_line,
    ended_kept,
    is_any_busy,
    is_busy,
    joined_use,
    use_between,
)

SPIN = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"


def times(wall: float, busy: float, own: float, stolen: float = 0.0) -> ProcessorTimes:
    return ProcessorTimes(wall, busy, stolen, own, num=2)


@pytest.mark.parametrize(
    ("end", "shares", "busy"),
    [
        (times(110, 1018, 18), (0.9, 0.0, 0.0), False),
        (times(110, 1018, 8), (0.4, 0.5, 0.0), True),
        (times(110, 1010, 10, stolen=4), (0.5, 0.0, 0.2), True),
        (times(110, 1012, 10), (0.5, MAX_OTHER_SHARE, 0.0), False),
        (times(110, 1009, 10), (0.5, 0.0, 0.0), False),
    ],
    ids=["alone", "others", "stolen", "at the bound", "less than ours, by rounding"],
)
def test_what_is_not_ours_is_others(end: ProcessorTimes, shares: tuple[float, ...], busy: bool) -> None:
    use = use_between(times(100, 1000, 0), end)
    assert (use["own_share"], use["other_share"], use["stolen_share"]) == shares
    assert use["seconds"] == 10
    assert is_busy({"use": use}) is busy


def test_a_machine_that_tells_nothing_is_not_called_busy() -> None:
    use = use_between(ProcessorTimes(0, 0, 0, 0, 0), ProcessorTimes(5, 0, 0, 1, 0))
    assert (use["seconds"], use["other_share"]) == (5, None)
    assert not is_busy({"use": use})
    assert not is_busy({})


def test_one_busy_part_of_five_makes_a_run_busy() -> None:
    """The average of all is quiet. What is told is that average, and a run that goes on later stays busy."""
    quiet = use_between(times(100, 1000, 0), times(110, 1010, 10))
    busy = use_between(times(100, 1000, 0), times(110, 1018, 10))
    assert (is_any_busy([quiet] * 5), is_any_busy([*[quiet] * 4, busy]), is_any_busy([])) == (False, True, False)
    run = joined_use([*[quiet] * 4, busy])
    assert run["other_share"] == 0.08
    assert is_busy({"use": run})
    assert is_busy({"use": joined_use([run, *[quiet] * 5])})
    assert not is_busy({"use": joined_use([quiet] * 5)})
    assert busy_line({"use": run}) == (
        "other work took 8 % of the processors meanwhile, and the host 0 %, in a part of the run more than 10 %"
    )
    assert busy_line({"use": busy}) == "other work took 40 % of the processors meanwhile, and the host 0 %"


def test_work_of_a_child_that_has_ended_is_ours() -> None:
    begin = ProcessorTimes.now()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert ProcessorTimes.now().own - begin.own > 0.25


def test_work_of_a_child_that_lives_is_ours() -> None:
    """A server goes on while one of its rounds is over. What its own children had before they ended counts, too."""
    program = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**7))']); sum(range(10**7)); "
        "print('done', flush=True); sys.stdin.read()"
    )
    begin = ProcessorTimes.now().own
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "done\n"
        living = ProcessorTimes.now().own - begin
        child.communicate()
    assert living > 0.1
    assert ProcessorTimes.now().own - begin >= living - 0.02


@pytest.mark.parametrize(("ending", "is_kept"), [(ended_kept, True), (nullcontext, False)], ids=["kept", "control"])
def test_work_of_an_engine_that_its_server_did_not_wait_for(
    ending: type[AbstractContextManager[None]], is_kept: bool
) -> None:
    """Both get the signal that ends their session. Without `ended_kept` their times are gone: a run looked busy."""
    engine = f"import time\n{SPIN}\nprint('done', flush=True)\ntime.sleep(600)"
    server = f"import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', {engine!r}])\ntime.sleep(600)"
    begin = ProcessorTimes.now().own
    child = subprocess.Popen([sys.executable, "-c", server], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "done\n"
    with ending():
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    assert (ProcessorTimes.now().own - begin > 0.25) is is_kept


def test_files_that_differ_from_the_commit_are_named(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    assert commit_of(tmp_path) == (None, [])
    subprocess.run([*git, "init", "--quiet"], check=True)
    for name in ("kept", "changed", "old name"):
        (tmp_path / name).write_text(name * 50)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "one"], check=True)
    commit, changed = commit_of(tmp_path)
    assert (len(commit or ""), changed) == (40, [])
    (tmp_path / "changed").write_text("now")
    (tmp_path / "new folder").mkdir()
    (tmp_path / "new folder/file").write_text("")
    subprocess.run([*git, "mv", "old name", "new name"], check=True)
    assert commit_of(tmp_path) == (f"{commit}+", ["changed", "new folder/", "new name", "old name"])


def test_a_new_result_leaves_the_next_one_its_commit(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.com"]
    inner = tmp_path / "benchmarks/harness"
    for file in ("benchmarks/harness/machine.py", "benchmarks/results/edit.json", "docs/page.md"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("one")
    subprocess.run([*git, "init", "--quiet"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "--quiet", "--message", "one"], check=True)
    clean = commit_of(inner)
    for file in ("benchmarks/results/edit.json", "benchmarks/results/new.json", "docs/page.md"):
        (tmp_path / file).write_text("two")
    assert commit_of(inner) == clean
    (tmp_path / "benchmarks/results.py").write_text("two")
    assert commit_of(inner) == (f"{clean[0]}+", ["benchmarks/results.py"])


def test_a_report_has_what_a_reader_needs_to_judge_its_age() -> None:
    assert {"date", "commit", "changed", "command", "load", "cpu", "vectors", "cores"} <= describe_machine().keys()


@pytest.mark.parametrize(
    ("flags", "vectors"),
    [("fpu sse2 avx avx2 avx512f amx_bf16", "AMX"), ("avx2 avx512f", "AVX-512"), ("avx avx2", "AVX2"), ("asimd", None)],
)
def test_two_processors_of_one_name_are_told_apart_by_their_vectors(flags: str, vectors: str | None) -> None:
    assert widest_vectors(flags) == vectors
    told = cpu_of({"cpu": "AMD EPYC", "vectors": vectors})
    assert told == ("AMD EPYC" if vectors is None else f"AMD EPYC ({vectors})")
