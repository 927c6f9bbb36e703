"""`bench eval` against a toy server: every task in every way that runs no code, and the tables that come of it."""

from __future__ import annotations

import argparse
import json
import shlex
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.eval.baselines.memagent import parts
from acmserve.bench.eval.baselines.plain_text import plain_text
from acmserve.bench.eval.baselines.retrieval import retrieve
from acmserve.bench.eval.baselines.way_limits import limits_of
from acmserve.bench.eval.bench import _WINDOW, MAP_TOKENS, SIZES, SMALL_MAP, _arguments, _parser, play
from acmserve.bench.eval.main import parser, samples_of
from acmserve.bench.eval.rlm.loop import answer_in_session
from acmserve.bench.eval.rlm.python_session import PythonSession
from acmserve.bench.eval.sandbox.limits import RunLimits
from acmserve.bench.eval.schedule.pace import EvalPace
from acmserve.bench.eval.schedule.sittings import of_sittings
from acmserve.bench.eval.tasks.registry import DEFAULT_TASKS, TASKS
from acmserve.bench.eval.tasks.task import EvalSample
from acmserve.bench.eval.terminal.shell import Ran, Shell
from acmserve.bench.report.ledger import read_ledger
from acmserve.bench.report.page import sections_of
from acmserve.bench.report.page_section import PageSection
from acmserve.bench.report.sections.evaluations.evaluated_agents import AGENT, MAPS, SHELL
from acmserve.bench.report.sections.evaluations.evaluation import EVALUATION, LEARNED
from acmserve.bench.report.sources import find_sources
from acmserve.context.maps.map import DEFAULT_EVOLVE_STEPS
from tests.support.server.fake_openai import Answer, ToyModel, openai_server, says

SECTION, OF_LEARNER, OF_AGENT, OF_SHELL, OF_MAPS = EVALUATION


def toy(status: int = 200) -> ToyModel:
    _, said = says("no idea", {"prompt_tokens": 9, "completion_tokens": 2})
    return ToyModel(lambda body: (status, said))


@pytest.mark.parametrize(("status", "is_green"), [(200, True), (400, False)])
def test_every_task_is_played_and_a_refused_sample_makes_the_gate_red(
    tmp_path: Path, status: int, is_green: bool
) -> None:
    options = _parser().parse_args(["--quick", "--work", str(tmp_path / "work")])
    with openai_server(toy(status)) as url:
        report = play(url, options, EvalPace(8))
    assert report["gate"]["green"] is is_green
    assert {row["task"] for row in report["rows"]} == {*DEFAULT_TASKS, "all"}
    assert {row["way"] for row in report["rows"]} == {"baseline", "reads", "shared", "rag"}
    assert report["max_tokens"] == 48
    assert "records" not in report
    assert "budget:cwl" in report["skipped"]
    assert "rlm" not in report["skipped"]
    [journal] = (tmp_path / "work").iterdir()
    assert journal.name == f"{report['run']}.played.jsonl"
    assert report["num_played"] == report["num_planned"]
    (sitting,) = report["sittings"]
    assert sitting["num_played"] == report["num_played"]
    assert report["machine"]["commit"] == sitting["commit"]
    assert report["use"]["answers"] == sum(row["num_requests"] for row in report["rows"] if row["task"] == "all")


def test_cells_grow_alike(tmp_path: Path) -> None:
    """In a round each task has two samples, or four questions about one context, in each way that plays it."""
    assert SIZES.keys() == set(TASKS)
    options = _parser().parse_args(["--samples", "3", "--work", str(tmp_path)])
    with openai_server(toy()) as url:
        report = play(url, options, EvalPace(8))
    nums = {(row["task"], row["way"]): row["num_samples"] for row in report["rows"] if row["task"] != "all"}
    assert {num for (task, _), num in nums.items() if task != "oolong"} == {6}
    assert {num for (task, _), num in nums.items() if task == "oolong"} == {12}


def asked(*flags: str) -> tuple[argparse.Namespace, list[EvalSample]]:
    """What `acmserve eval` is asked for by these flags of the bench, and the samples of it."""
    wanted = parser().parse_args(_arguments("", _parser().parse_args(flags)))
    return wanted, samples_of(wanted)


def test_retrieval_leaves_some_of_each_text_out_and_a_memory_is_rewritten() -> None:
    wanted, samples = asked()
    limits = limits_of(wanted)
    assert {one.task for one in samples} == {*DEFAULT_TASKS}
    for one in samples:
        told = plain_text(one)
        num_found = sum(len(chunk.split()) for chunk in retrieve(told.text, told.query, limits))
        assert 0 < num_found <= 0.75 * len(told.text.split()), one.name
        assert 2 <= len(parts(told.text, limits.part)) <= 4, one.name


def test_the_steps_of_an_agent_have_room_for_code_and_stay_in_the_window() -> None:
    """The worst: each step is as long as may be, prints without an end, and a character is a token."""
    wanted, samples = asked("--ways", "rlm", "rlm-map", "--tasks", "oolong", "--set", "oolong.questions=8")
    limits, sizes = limits_of(wanted), []
    assert limits.step_tokens >= 512 > wanted.max_tokens
    assert limits.steps is not None

    def ask(messages: list[Any], is_last: bool) -> str:
        told = sum(len(one["content"]) for one in messages if one["role"] != "assistant")
        sizes.append(told + (len(messages) // 2) * limits.step_tokens)
        return "```repl\nprint('x' * 100_000)\n```\n```repl\nprint('y' * 100_000)\n```\nFINAL_VAR(" + "z" * 2_000 + ")"

    longest = max((one.question for one in samples), key=len)
    with PythonSession("text", lambda prompts: [], RunLimits().showing(limits.printed)) as session:
        answer_in_session(ask, longest, 10**6, session, limits.steps)
    assert len(sizes) == limits.steps + 1
    num_of_map, num_of_words_about_it = 512, 512
    assert max(sizes) + num_of_map + num_of_words_about_it < _WINDOW


def test_twenty_tasks_in_one_session_stay_in_the_window_and_reach_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step is as long as may be and prints more than is shown, and two characters are a token."""
    monkeypatch.setattr(Shell, "run", lambda shell, command: Ran(0, shell.limits.trim("x" * 1_000)))
    wanted, samples = asked(*flags_of(SHELL))
    assert [len(names) for names in groups(samples).values()] == [20] * 8
    assert wanted.ways == ("shell-isolated", "shell", "shell:cwl", "shell:recency", "shell:compact")
    sizes, own = [0], [0]

    def answer(body: dict[str, Any]) -> Answer:
        told = [one["content"] for one in body["messages"] if one["role"] != "assistant"]
        tokens = [len(text) // 2 + 5 for text in told]
        said = [one for one in body["messages"] if one["role"] == "assistant" and "```" in one["content"]]
        sizes.append(sum(tokens) + len(said) * (body["max_tokens"] + 5) + body["max_tokens"])
        own.append(sum(num for num, text in zip(tokens, told, strict=True) if not text.startswith("<returncode>0")))
        return says("```bash\nls\n```", {"prompt_tokens": 9, "completion_tokens": 2})

    flags = ("--ways", "shell", "--tasks", "terminal", "--samples", "1")
    report = played(tmp_path, ToyModel(answer), *flags)
    (row,) = report["rows"]
    assert (row["num_samples"], row["num_contexts"], row["num_requests"]) == (20, 1, 40)
    assert max(own) < wanted.budget < 0.75 * max(sizes)
    assert max(sizes) < _WINDOW


def test_a_map_of_each_ablation_has_questions_that_it_does_not_learn_from() -> None:
    wanted, samples = asked(*flags_of(MAPS))
    assert [len(questions) for questions in groups(samples).values()] == [2 * DEFAULT_EVOLVE_STEPS] * 2
    assert wanted.ways == ("map", *(f"map:{name}" for name in ("no-eviction", "monolithic", "b256", "m1", "m-all")))
    assert wanted.map == json.loads(SMALL_MAP)


def flags_of(name: str) -> list[str]:
    return shlex.split(find_sources()[name].command.removeprefix("acmserve bench eval "))


def groups(samples: list[EvalSample]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in samples:
        found.setdefault(one.group, []).append(one.name)
    return found


def test_half_of_the_questions_of_agents_with_a_map_read_one_that_no_longer_learns() -> None:
    _, samples = asked(*flags_of(AGENT))
    nums = Counter(one.group for one in samples)
    assert list(nums.values()) == [2 * DEFAULT_EVOLVE_STEPS] * 4
    assert len({(one.group, one.question) for one in samples}) == 32


def test_a_run_that_is_over_tells_what_it_has_and_the_next_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = _parser().parse_args(["--samples", "2", "--work", str(tmp_path)])
    clock = [0.0]

    def ticking(body: object) -> Answer:
        clock[0] += 1
        return toy()._reply(body)

    with openai_server(ToyModel(ticking)) as url:
        part = play(url, options, EvalPace(1, 100.0, lambda: clock[0]))
        assert "The same command goes on with" in capsys.readouterr().err
        whole = play(url, options, EvalPace(8))
    assert part["gate"]["green"]
    assert part["num_played"] < whole["num_played"] == whole["num_planned"] == part["num_planned"]
    cells = [{(row["task"], row["way"]) for row in report["rows"]} for report in (part, whole)]
    assert cells[0] == cells[1]
    assert [sitting["num_played"] for sitting in whole["sittings"]] == [
        part["num_played"],
        whole["num_played"] - part["num_played"],
    ]


def test_a_result_is_as_old_as_its_first_sitting_and_as_busy_as_all_of_them() -> None:
    shares = {"own_share": 0.8, "other_share": 0.4, "stolen_share": None}
    sittings = [
        {"machine": {"date": "monday", "commit": "a"}, "use": {"seconds": 30.0, **shares}, "num_played": 3},
        {"machine": {"date": "friday", "commit": "b"}, "use": {"seconds": 90.0, **shares, "other_share": 0.0}},
        {"machine": {"date": "sunday", "commit": "b"}},
    ]
    told = of_sittings(sittings, 7)
    assert told["machine"]["commit"] == "a"
    assert told["use"] == {
        "seconds": 120.0,
        "own_share": 0.8,
        "other_share": 0.1,
        "stolen_share": None,
        "is_any_busy": True,
        "answers": 7,
    }
    assert [sitting["commit"] for sitting in told["sittings"]] == ["a", "b", "b"]


def played(folder: Path, answers: ToyModel, *more: str) -> dict[str, Any]:
    with openai_server(answers) as url:
        return play(url, _parser().parse_args(["--samples", "1", "--work", str(folder), *more]), EvalPace())


def shown(section: PageSection, folder: Path) -> str:
    return "\n".join(sections_of([section], folder, read_ledger(folder)))


def test_the_page_has_the_tables_where_there_are_results(tmp_path: Path) -> None:
    assert shown(SECTION, tmp_path) == ""
    report = played(tmp_path / "work", toy())
    (tmp_path / "eval.json").write_text(json.dumps(report))
    page = shown(SECTION, tmp_path)
    assert page.count("0 [0, 66], n 2 |") > 4 * len(DEFAULT_TASKS)
    assert "| can show | nothing | nothing | " in page
    assert "Of 9 tasks none can show a loss on this model, none a gain alone, 9 nothing. " in page
    assert "`rag` sees about 45 words of a text. `memagent` reads parts of 100 tokens." in page
    assert "No way can be seen to lose or to keep answers." in page
    assert "No way gets more than 5 % right of `pi-llm`, `needlebench`, " in page
    assert page.count("| `memagent` |") == 3
    assert "| way | prompt | kept | moved | computed | output | seconds waited | cost, in plain input tokens |" in page
    assert "| `baseline` | 20 of 17 contexts | 0.0 [0.0, 23.5] | - | - | 9 | 9 | 2 | 0 | 1.00 | 1.00 | 0 |" in page
    assert "0 [0, 79], n 4 of 1 context |" in page
    assert "Intervals are over contexts: questions about one context count as one observation." in page
    for row in report["rows"]:
        del row["num_contexts"]
    (tmp_path / "eval.json").write_text(json.dumps(report))
    older = shown(SECTION, tmp_path)
    assert "Intervals of this result take questions about one context as independent, so those of `oolong`" in older
    assert "contexts |" not in older


def test_a_result_from_before_the_limits_says_that_the_whole_text_was_seen(tmp_path: Path) -> None:
    report = played(tmp_path / "work", toy(), "--ways", "baseline", "rag")
    del report["limits"]
    (tmp_path / "eval.json").write_text(json.dumps(report))
    assert "`rag` and `memagent` saw the whole text here, which is shorter" in shown(SECTION, tmp_path)


def test_a_task_of_which_the_whole_context_is_right_shows_what_a_way_loses(tmp_path: Path) -> None:
    """The toy says the letter, but where the text reaches it in passages or parts of a memory."""

    flags = ["--tasks", "longbench-v2", "babilong", "--samples", "8"]
    samples = samples_of(parser().parse_args(_arguments("", _parser().parse_args(flags))))
    letters = {str(one.messages()[-1]["content"]): one.gold for one in samples if one.task == "longbench-v2"}

    def answer(body: Any) -> Answer:
        letter = letters.get(body["messages"][-1]["content"], "?")
        return says(f"The correct answer is ({letter})", {"prompt_tokens": 9, "completion_tokens": 2})

    report = played(tmp_path / "work", ToyModel(answer), *flags)
    (tmp_path / "eval.json").write_text(json.dumps(report))
    page = shown(SECTION, tmp_path)
    assert "Of 2 tasks 1 can show a loss on this model, none a gain alone, 1 nothing." in page
    assert "Where a way can lose, the worst of 2 is `rag` -100.0 [-100.0, -100.0]." in page
    assert "Below zero by their intervals: `rag`, `memagent`." in page
    assert "| `longbench-v2` | 25 | 100 [81, 100], n 16 | " in page


def test_the_model_that_was_trained_has_a_section_of_its_own(tmp_path: Path) -> None:
    (tmp_path / f"{LEARNED}.json").write_text(json.dumps(played(tmp_path / "work", toy())))
    assert "### Evaluation of a model that was trained" in shown(OF_LEARNER, tmp_path)
    assert shown(SECTION, tmp_path) == ""
    assert find_sources()[LEARNED].command == "make eval-learner"


def test_an_agent_with_a_map_is_told_beside_one_without(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        return says("FINAL(no idea)", {"prompt_tokens": 90, "completion_tokens": 5})

    flags = ("--ways", "rlm", "--tasks", "oolong", "--samples", "2")
    report = played(tmp_path / "work", ToyModel(answer), *flags)
    (alone,) = [row for row in report["rows"] if row["task"] == "oolong"]
    assert (alone["num_samples"], alone["num_requests"]) == (8, 8)
    with_map = alone | {"way": "rlm-map", "difference": 0.125, "difference_interval": [-0.25, 0.5]}
    with_map |= {"update_tokens": [700, 100]}
    report["rows"] += [with_map, with_map | {"task": "all"}]
    (tmp_path / f"{AGENT}.json").write_text(json.dumps(report))
    page = shown(OF_AGENT, tmp_path)
    assert "Over 8 questions about 2 texts, each in a session of its own, the map changes right answers by " in page
    assert "changes right answers by +12.5 [-25.0, 50.0]" in page
    assert "Its updates read and write 100 tokens a question, beside 95 of the agent's own requests." in page
    assert "No way has a right answer, so no gain can be seen." in page
    assert "A map learns until 4 updates have counted." in page
    assert find_sources()[AGENT].command == OF_AGENT.command
    assert "by code, for 4 iterations at most, of 512 tokens each." in page
    del report["limits"]
    (tmp_path / f"{AGENT}.json").write_text(json.dumps(report))
    assert "by code, for 30 iterations at most, of 64 tokens each." in shown(OF_AGENT, tmp_path)


@pytest.mark.parametrize(("num_updates", "told"), [(None, "does not tell"), (8, "is 8."), (116, "is 116.")])
def test_how_often_questions_taught_a_map_is_told_by_the_result(
    tmp_path: Path, num_updates: int | None, told: str
) -> None:
    """Older results tell no number. Those are of runs in which prose ended a question, too."""
    report = played(tmp_path / "work", toy(), "--ways", "rlm", "--tasks", "oolong")
    (alone,) = report["rows"]
    row = alone | {"way": "rlm-map", "score": 0.25, "difference": 0.25, "update_tokens": [70, 10]}
    report["rows"].append(row if num_updates is None else row | {"num_updates": num_updates})
    report["map"] = {"evolve_steps": 32}
    (tmp_path / f"{AGENT}.json").write_text(json.dumps(report))
    page = shown(OF_AGENT, tmp_path)
    assert f"All questions about a text share one map. {'This result' if num_updates is None else 'Behind'}" in page
    assert told in page
    assert ("Iterations in prose updated it, too." in page) is (num_updates is None)
    assert "no gain can be seen" not in page
    assert "A map learns until 32 updates have counted." in page


@pytest.mark.parametrize(("num_written", "is_empty"), [(2 * MAP_TOKENS, True), (2 * MAP_TOKENS + 1, False)])
def test_maps_that_learned_nothing_are_told(tmp_path: Path, num_written: int, is_empty: bool) -> None:
    """An answer that is cut has as many tokens as it may have, and no second model is asked behind it."""
    report = played(tmp_path / "work", toy(), "--ways", "rlm", "--tasks", "oolong")
    told = {"way": "rlm-map", "difference": 0.0, "update_tokens": [70, num_written], "num_updates": 2}
    report["rows"].append(report["rows"][0] | told)
    (tmp_path / f"{AGENT}.json").write_text(json.dumps(report))
    assert ("so the maps stayed empty" in shown(OF_AGENT, tmp_path)) is is_empty


def test_an_agent_in_a_shell_is_told_way_by_way(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> Answer:
        return says("FINAL(done)", {"prompt_tokens": 90, "completion_tokens": 5})

    assert shown(OF_SHELL, tmp_path) == ""
    flags = ("--ways", "shell-isolated", "shell", "--tasks", "terminal")
    report = played(tmp_path / "work", ToyModel(answer), *flags)
    (session,) = [row for row in report["rows"] if row["way"] == "shell"]
    report["rows"].append(session | {"way": "shell:cwl", "num_unmet": 3, "computed_tokens": 20 * 1234})
    (tmp_path / f"{SHELL}.json").write_text(json.dumps(report))
    page = shown(OF_SHELL, tmp_path)
    assert "`shell-isolated` solves 0.0 % of 20 tasks, 90 computed tokens for each. `shell` solves " in page
    assert "`shell:cwl` solves 0.0 % of 20 tasks, 1,234 computed tokens for each. " in page
    assert "Its budget was not met in 3 tasks." in page
    assert "Each task has 2 steps of 64 tokens, and a step shows 100 characters." in page
    assert "re-explorations" in page
    assert find_sources()[SHELL].command == OF_SHELL.command


def test_ablations_of_maps_are_told_by_what_their_updates_cost(tmp_path: Path) -> None:
    assert shown(OF_MAPS, tmp_path) == ""
    report = played(tmp_path / "work", toy(), "--ways", "baseline", "--tasks", "oolong")
    (alone,) = report["rows"]
    costs = {"map": [700, 100], "map:monolithic": [300, 50], "map:b2048": [900, 100]}
    report["rows"] = [alone | {"way": way, "update_tokens": update} for way, update in costs.items()]
    (tmp_path / f"{MAPS}.json").write_text(json.dumps(report))
    page = shown(OF_MAPS, tmp_path)
    assert "`map` is right in 0.0 %. `map:monolithic` is right in 0.0 %." in page
    assert "Updates read and write 88 tokens a question with `map:monolithic`, the least, " in page
    assert "and 250 with `map:b2048`, the most." in page
    assert find_sources()[MAPS].command == OF_MAPS.command
    assert "A map has 1,024 tokens. A map learns until 4 updates" in page
    assert "This result does not tell which maps were full." in page
    report |= {"map": {"budget": 160}, "ways": dict.fromkeys(("map", "map:b256", "map:m1"), "")}
    for told, num in (("No map was full.", 0), ("Items that a budget did not hold: `map` 3.", 3)):
        report["rows"][0]["num_beyond_budget"] = num
        (tmp_path / f"{MAPS}.json").write_text(json.dumps(report))
        assert told in shown(OF_MAPS, tmp_path)
    assert "`map:b256` is of 256 tokens. `map:m1` is taught by one question." in shown(OF_MAPS, tmp_path)
