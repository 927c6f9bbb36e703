"""The twenty tasks in a shell: each can be solved, each check refuses what is wrong, and an agent is scored by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from acmserve.bench.eval.sandbox.limits import RunLimits, can_be_offline
from acmserve.bench.eval.tasks.registry import TASKS, make_samples
from acmserve.bench.eval.terminal.shell import Shell
from acmserve.bench.eval.terminal.task import CHARS_OF_A_TASK, make, score
from acmserve.cli import main as cli
from acmserve.context.transcript.observations import ObservationRule
from acmserve.errors import AcmError
from tests.support.server.fake_openai import Answer, ToyModel, openai_server, says

SAMPLES = {sample.name.removeprefix("tasks20/0/"): sample for sample in make({"tasks": 20}, 0)}
SOLUTIONS: dict[str, dict[str, str]] = json.loads(Path(__file__).with_name("solutions.json").read_text("utf-8"))


def is_solved(name: str, *commands: str) -> bool:
    """Whether the check of a task passes after these commands."""
    with Shell() as shell:
        shell.set_up(SAMPLES[name].facts["setup"])
        for command in commands:
            shell.run(command)
        return shell.passes(SAMPLES[name].facts["check"])


@pytest.mark.parametrize("name", SAMPLES)
def test_a_check_passes_what_is_right_and_nothing_else(name: str) -> None:
    assert is_solved(name, SOLUTIONS[name]["right"])
    assert not is_solved(name, SOLUTIONS[name]["wrong"])
    assert not is_solved(name)


def test_there_are_twenty_in_an_order_of_their_own_for_each_seed() -> None:
    assert len(SAMPLES) == 20
    other = [sample.name.removeprefix("tasks20/1/") for sample in make({"tasks": 20}, 1)]
    assert sorted(other) == sorted(SAMPLES)
    assert other != list(SAMPLES)


def test_sessions_of_two_lengths_are_two_settings() -> None:
    samples = make_samples(TASKS["terminal"], 1, 0, {"tasks": (2, 5)})
    assert [sample.setting for sample in samples] == ["tasks2"] * 2 + ["tasks5"] * 5
    assert len({sample.name for sample in samples}) == 7
    assert {sample.group for sample in samples} == {"tasks2/0", "tasks5/0"}


def test_a_file_of_tasks_is_one_session_as_long_as_its_rows(tmp_path: Path) -> None:
    """A budget may be a share of the session. So thirty tasks have a budget half as large again as twenty."""
    rows = [{"name": f"{n}", "setup": "true", "instruction": "Do nothing.", "check": "true"} for n in range(30)]
    (tmp_path / "tasks.json").write_text(json.dumps(rows))
    read = make_samples(TASKS["terminal"], 30, 0, {}, tmp_path / "tasks.json")
    assert {(sample.group, sample.session_chars) for sample in read} == {("tasks", 30 * CHARS_OF_A_TASK)}
    assert {sample.session_chars for sample in SAMPLES.values()} == {20 * CHARS_OF_A_TASK}


def test_a_shell_keeps_its_folder_ends_its_processes_and_knows_no_network(tmp_path: Path) -> None:
    with Shell(RunLimits(seconds=1.0)) as short:
        assert short.run("sleep 60").code is None
    with Shell(RunLimits(seconds=60.0, cpu_seconds=1, file_bytes=2**16, output_chars=1000)) as shell:
        shell.run("echo kept > file; cd /; export X=1")
        assert shell.run("cat file; echo $X$ACMSERVE_API_KEY; exit 3").told.startswith("<returncode>3</returncode>")
        assert shell.run("cat file").output == "kept\n"
        assert shell.run("while true; do :; done").code != 0
        assert shell.run("sleep 60 & echo begun").output == "begun\n"
        assert len(shell.run("yes | head -100000").output) < 1100
        assert shell.run("head -c 1000000 /dev/zero > big").code != 0
        if can_be_offline():
            assert shell.run("tail -n +2 /proc/net/route").output == ""
            assert shell.run("setsid sleep 61379 >/dev/null 2>&1 & echo left").output == "left\n"
            assert not any("61379" in (process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
        with pytest.raises(AcmError, match="cannot be set up"):
            shell.set_up("exit 1")
        folder = shell.folder
    assert not folder.exists()


class Worker(ToyModel):
    """A model that solves some tasks, gets some wrong, and gives up on one. `most` requests are answered."""

    def __init__(self, wrong: set[str], most: int = 10**6) -> None:
        self._by_instruction = {sample.question: name for name, sample in SAMPLES.items()}
        self._wrong = wrong
        super().__init__(self._answer, most)

    def _answer(self, body: Any) -> Answer:
        usage = {"prompt_tokens": len(str(body["messages"]).split()), "completion_tokens": 9}
        return says(self._say(body["messages"]), usage)

    def _say(self, messages: list[dict[str, str]]) -> str:
        asked = [index for index, message in enumerate(messages) if message["content"].startswith("Next task: ")]
        name = self._by_instruction[messages[asked[-1]]["content"].removeprefix("Next task: ")]
        if messages[asked[-1] + 1 :]:
            return "FINAL(done)"
        if name == "rename":
            return "I cannot do it.\nFINAL(done)"
        return f"I try.\n```bash\n{SOLUTIONS[name]['wrong' if name in self._wrong else 'right']}\n```"


WRONG = {"archive", "fix-test", "sum-table"}
ARGUMENTS = ["--tasks", "terminal", "--samples", "1", "--ways", "shell-isolated,shell,shell:cwl,baseline"]


def report_of(worker: Callable[[str, Any, str | None], Answer], folder: Path, code: int = 0) -> dict[str, Any]:
    with openai_server(worker) as url:
        assert cli(["eval", url, *ARGUMENTS, "--output", str(folder)]) == code
    return {} if code else json.loads((folder / "results.json").read_text())


def test_an_agent_is_scored_by_the_checks_and_a_session_has_all_that_came_before(tmp_path: Path) -> None:
    worker = Worker(WRONG)
    report = report_of(worker, tmp_path / "whole")
    assert report["skipped"] == {
        "shell:cwl": "the server has no acmserve",
        "baseline": "the task is for an agent in a shell",
    }
    rows = {row["way"]: row for row in report["rows"]}
    assert {way: (row["num_samples"], row["score"]) for way, row in rows.items()} == {
        "shell-isolated": (20, 0.8),
        "shell": (20, 0.8),
    }
    assert rows["shell"]["difference"] == 0
    assert rows["shell-isolated"]["score_interval"][0] < 0.8 < rows["shell-isolated"]["score_interval"][1]
    assert rows["shell"]["prompt_tokens"] > 3 * rows["shell-isolated"]["prompt_tokens"]
    lost = {record["sample"].removeprefix("tasks20/0/") for record in report["records"] if record["score"] == 0}
    assert lost == WRONG | {"rename"}
    last = worker.bodies[-1]["messages"]
    assert sum(message["content"].startswith("Next task: ") for message in last) == 20
    assert all(one["role"] != two["role"] for one, two in pairwise(last))
    observed = [index for index, message in enumerate(last) if message["content"].startswith("<returncode>")]
    assert all(ObservationRule().takes(last[index], last[index - 1]) for index in observed)

    cut = tmp_path / "cut"
    report_of(Worker(WRONG, most=61), cut, code=2)
    again = report_of(Worker(WRONG), cut)
    for row in [*report["rows"], *again["rows"], *report["records"], *again["records"]]:
        del row["seconds"]
    assert again == report


def test_a_step_has_limits_of_its_own(tmp_path: Path) -> None:
    """A short answer does not cut a block of commands. Steps, and what they show, are bounded where it is said."""
    worker = ToyModel(lambda body: says("```bash\nseq 9999\n```\n```bash\nseq 9999\n```", {}))
    limits = ["--max-tokens", "64", "--steps", "2", "--printed", "200", "--set", "terminal.tasks=1"]
    with openai_server(worker) as url:
        assert cli(["eval", url, *ARGUMENTS, *limits, "--output", str(tmp_path)]) == 0
    assert [body["max_tokens"] for body in worker.bodies] == [512] * 4
    assert 200 < len(worker.bodies[1]["messages"][-1]["content"]) < 300


def test_who_does_nothing_solves_nothing(tmp_path: Path) -> None:
    """The control: an agent that only says that it is done."""

    def answer(path: str, body: Any, key: str | None) -> Answer:
        if path == "/v1/models":
            return 200, {"data": [{"id": "toy"}]}
        said = {"choices": [{"message": {"role": "assistant", "content": "FINAL(done)"}}], "usage": {}}
        return (200, said) if path == "/v1/chat/completions" else (404, {})

    assert {row["score"] for row in report_of(answer, tmp_path)["rows"]} == {0.0}


def test_an_answer_without_a_result_scores_nothing() -> None:
    sample = SAMPLES["rename"]
    assert score(sample, "") == 0
    assert score(sample, json.dumps({"solved": True, "messages": []})) == 1
