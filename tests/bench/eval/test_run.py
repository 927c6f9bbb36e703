"""`acmserve eval` against a toy server that knows the answers: scores, costs, going on after a cut, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.eval.completion import Completion, read_answer
from acmserve.bench.eval.main import parser, samples_of
from acmserve.bench.eval.page import as_markdown
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.eval.schedule.journal import Journal
from acmserve.bench.eval.summary import at_the_floor, summarise
from acmserve.bench.eval.tasks.registry import TASKS
from acmserve.bench.eval.tasks.task import EvalSample
from acmserve.cli import main as cli
from acmserve.errors import AcmError
from tests.support.server.fake_openai import Answer, ToyModel, openai_server, says

ARGUMENTS = ["--tasks", "babilong,longbench-v2,mrcr", "--samples", "2", "--ways", "baseline,reads,tools,rag"]
RIGHT = {"longbench-v2": "The correct answer is ({})"}


def samples(arguments: list[str]) -> list[EvalSample]:
    return samples_of(parser().parse_args(["http://nowhere", *arguments]))


class Toy(ToyModel):
    """Right answers, but for samples in `wrong`. `most` requests are answered, and then none."""

    def __init__(self, known: list[EvalSample], wrong: Callable[[EvalSample], bool], most: int = 10**6) -> None:
        super().__init__(self._answer, most)
        self._known, self._wrong = known, wrong

    def _answer(self, body: Any) -> Answer:
        asked = body["messages"][-1]["content"]
        sample = next(one for one in self._known if asked.endswith(one.question))
        answer = RIGHT.get(sample.task, "{}").format("nothing of it" if self._wrong(sample) else sample.gold)
        usage = {"prompt_tokens": 100, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 40}}
        return says(answer, usage)


def run(url: str, folder: Path, *more: str) -> int:
    return cli(["eval", url, "--output", str(folder), *ARGUMENTS, *more])


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return report


def without_seconds(report: dict[str, Any]) -> dict[str, Any]:
    for row in [*report["rows"], *report["records"]]:
        del row["seconds"]
    return report


def test_scores_are_those_of_the_answers_and_what_cannot_be_done_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = samples(ARGUMENTS)
    toy = Toy(known, wrong=lambda one: one.task == "babilong" and one.name.endswith("/1"))
    with openai_server(toy) as url:
        assert run(f"{url}/v1/", tmp_path) == 0
    report = report_of(tmp_path)
    assert report["model"] == "toy"
    assert report["skipped"] == {"tools": "the server has no acmserve"}
    rows = {(row["task"], row["way"]): row for row in report["rows"]}
    assert {key: row["score"] for key, row in rows.items() if key[1] == "baseline"} == {
        ("babilong", "baseline"): 0.5,
        ("longbench-v2", "baseline"): 1.0,
        ("mrcr", "baseline"): 1.0,
        ("all", "baseline"): pytest.approx(5 / 6, abs=1e-4),
    }
    assert rows["mrcr", "rag"]["score"] == 1.0
    settings = {(row["task"], row["way"]): row for row in report["settings"]}
    assert settings["babilong", "baseline"]["setting"] == "tokens1000"
    assert settings["babilong", "baseline"]["score"] == 0.5
    row = rows["babilong", "baseline"]
    assert (row["prompt_tokens"], row["kept_tokens"], row["computed_tokens"]) == (200, 80, 120)
    assert row["cost"] == pytest.approx((120 * 1.25 + 80 * 0.1 + 14 * 5) / 1e6, abs=1e-9)
    assert row["score_interval"][0] < 0.5 < row["score_interval"][1]
    assert rows["babilong", "rag"]["difference"] == 0
    page = (tmp_path / "page.md").read_text()
    assert page.strip() in capsys.readouterr().out
    assert "skipped: tools: the server has no acmserve" in page
    assert "- rag: retrieval (BM25)" in page
    assert "| baseline | 2 | 0 | 50.0 [" in page
    assert "<td>baseline</td>" in (tmp_path / "page.html").read_text()
    assert all("acm" not in body and "session_id" not in body for body in toy.bodies)


def test_reads_give_the_context_as_results_of_calls(tmp_path: Path) -> None:
    one = ["--tasks", "longbench-v2", "--samples", "1"]
    known = samples(one)
    toy = Toy(known, wrong=lambda one: False)
    with openai_server(toy) as url:
        assert cli(["eval", url, "--output", str(tmp_path), *one, "--ways", "reads", "--max-tokens", "9"]) == 0
    (body,) = toy.bodies
    assert (body["tool_choice"], body["max_tokens"]) == ("none", 9)
    assert "".join(one["content"] for one in body["messages"] if one["role"] == "tool") == known[0].context
    calls = [one["tool_calls"][0]["id"] for one in body["messages"] if one.get("tool_calls")]
    assert calls == [one["tool_call_id"] for one in body["messages"] if one["role"] == "tool"]


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_run_that_was_cut_off_goes_on_to_the_same_report(
    tmp_path: Path, is_torn: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    known = samples(ARGUMENTS)
    whole, first, second = (Toy(known, lambda one: one.name.endswith("/1")) for _ in range(3))
    first._most = 7
    with openai_server(whole) as url:
        assert run(url, tmp_path / "whole") == 0
    cut = tmp_path / "cut"
    with openai_server(first) as url:
        assert run(url, cut) == 2
    assert "the model is gone" in capsys.readouterr().err
    assert not (cut / "results.json").exists()
    if is_torn:
        journal = cut / "journal.jsonl"
        journal.write_bytes(journal.read_bytes()[:-20])
    with openai_server(second) as url:
        assert run(url, cut) == 0
    assert len(second.bodies) == len(whole.bodies) - 7 + is_torn
    assert without_seconds(report_of(cut)) == without_seconds(report_of(tmp_path / "whole"))


def test_a_folder_of_another_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy = Toy(samples([*ARGUMENTS, "--seed", "9"]) + samples(ARGUMENTS), lambda one: False)
    with openai_server(toy) as url:
        assert run(url, tmp_path) == 0
        before = (tmp_path / "results.json").read_bytes()
        assert run(url, tmp_path, "--seed", "9") == 2
    assert "belongs to another run" in capsys.readouterr().err
    assert (tmp_path / "results.json").read_bytes() == before
    (tmp_path / "journal.jsonl").write_text("no JSON\n")
    with pytest.raises(AcmError, match="is damaged"):
        Journal(tmp_path / "journal.jsonl", "x")


def test_a_refused_sample_scores_nothing_and_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(path: str, body: Any, key: str | None) -> Answer:
        if path == "/v1/models":
            return 200, {"data": [{"id": "toy"}]}
        return (400, {"error": {"message": "too long"}}) if body else (404, {})

    with openai_server(refuse) as url:
        assert run(url, tmp_path) == 0
    report = report_of(tmp_path)
    assert {row["score"] for row in report["rows"]} == {0.0}
    assert all(row["num_refused"] == row["num_samples"] for row in report["rows"])
    assert "too long" in report["records"][0]["error"]
    num = len(report["records"])
    assert f"{num} of {num} samples were refused and count as wrong. The first: 400: " in capsys.readouterr().err


def test_a_scorer_that_fails_is_told_and_its_answers_are_scored_when_it_no_longer_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(sample: EvalSample, answer: str) -> float:
        if sample.name.endswith("/1"):
            raise IndexError("list index out of range")
        return task.score(sample, answer)

    task = TASKS["babilong"]
    toy = Toy(samples(ARGUMENTS), wrong=lambda one: False)
    with openai_server(toy) as url:
        with monkeypatch.context() as patched:
            patched.setitem(TASKS, "babilong", replace(task, score=fails))
            assert [run(url, tmp_path) for _ in range(2)] == [1, 1]
        assert "failed on 3 answers" in capsys.readouterr().err
        assert "- not scored: 3 answers" in (tmp_path / "page.md").read_text()
        report = report_of(tmp_path)
        (row,) = (row for row in report["rows"] if (row["task"], row["way"]) == ("babilong", "baseline"))
        assert (row["score"], row["num_unscored"], row["num_refused"]) == (0.5, 1, 0)
        (record, *_) = (record for record in report["records"] if record["error"])
        assert record["error"] == "the scorer failed with IndexError: list index out of range"
        num_asked = len(toy.bodies)
        assert run(url, tmp_path) == 0
    assert len(toy.bodies) == num_asked
    assert {record["score"] for record in report_of(tmp_path)["records"]} == {1.0}
    page = (tmp_path / "page.md").read_text()
    assert "not scored" not in page
    older = report_of(tmp_path)
    for one in older["rows"]:
        del one["num_unscored"]
    assert as_markdown(older) == page


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tasks", "speed"], "'speed' is not known"),
        (["--ways", "magic"], "'magic' is not known"),
        (["--set", "mrcr.lines=3"], "mrcr has no 'lines'"),
        (["--set", "mrcr.needles=x"], "no whole numbers"),
        (["--tasks", "mrcr", "--data", "oolong=a.json"], "does not name 'oolong'"),
        (["--ways", "tools"], "each way is skipped"),
        (["--ways", "baseline", "--output", "/dev/null/x"], "cannot be made"),
    ],
)
def test_wrong_flags_are_named(
    arguments: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with openai_server(Toy([], lambda one: False)) as url:
        assert cli(["eval", url, "--output", str(tmp_path), *arguments]) == 2
    assert told in capsys.readouterr().err


def test_shared_questions_stand_in_one_conversation_also_after_a_cut(tmp_path: Path) -> None:
    arguments = ["--tasks", "oolong", "--samples", "1", "--ways", "shared"]
    known = samples(arguments)
    first, second = Toy(known, lambda one: False, most=2), Toy(known, lambda one: False)
    with openai_server(first) as url:
        assert cli(["eval", url, "--output", str(tmp_path), *arguments]) == 2
    with openai_server(second) as url:
        assert cli(["eval", url, "--output", str(tmp_path), *arguments]) == 0
    bodies = [*first.bodies, *second.bodies]
    assert [len(body["messages"]) for body in bodies] == [1, 3, 5, 7]
    assert bodies[3]["messages"][:5] == bodies[2]["messages"]
    assert bodies[3]["messages"][0]["content"] == f"{known[0].context}\n\n{known[0].question}"
    assert [one["content"] for one in bodies[3]["messages"][1::2]] == [one.gold for one in known[:3]]


def test_settings_stand_side_by_side(tmp_path: Path) -> None:
    arguments = ["--tasks", "frames", "--samples", "2", "--ways", "baseline"]
    with openai_server(Toy(samples(arguments), wrong=lambda one: one.setting.startswith("articles3"))) as url:
        assert cli(["eval", url, "--output", str(tmp_path), *arguments]) == 0
    page = (tmp_path / "page.md").read_text()
    assert "| way | articles2-tokens1000 | articles3-tokens1000 |" in page
    assert re.search(r"\| baseline \| 100\.0 \[\d+, 100\] \| 0\.0 \[0, \d+\] \|", page)


def test_nobody_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli(["eval", "http://127.0.0.1:9", "--output", str(tmp_path)]) == 2
    assert "cannot be reached" in capsys.readouterr().err
    assert cli(["eval", "localhost:8000", "--output", str(tmp_path)]) == 2
    assert "is no address" in capsys.readouterr().err


def test_loops_updates_and_differences_are_summed() -> None:
    def record(sample: str, way: str, score: float, completions: list[list[int]], **more: Any) -> dict[str, Any]:
        fields = {"error": "", "tools": {}, "num_errors": 0, "unmet": False, "update": None, "seconds": 1.0}
        return {"task": "t", "sample": sample, "way": way, "score": score, "completions": completions, **fields, **more}

    records = [
        record("a", "baseline", 0.0, [[0, 0, 100, 5]]),
        record("b", "baseline", 1.0, [[0, 0, 100, 5]]),
        record("a", "tools", 1.0, [[0, 0, 100, 0], [20, 4, 1, 9]], tools={"fold_fragment": 3}, update=[50, 10]),
        record(
            "b", "tools", 1.0, [[0, 0, 100, 0], [0, 20, 5, 9]], tools={"fold_fragment": 1}, num_errors=2, unmet=True
        ),
    ]
    base, tools = summarise(records, {"baseline": "baseline", "tools": "baseline"}, PriceRatios(base=2.0))
    assert base["reduction"] is None
    assert base["difference"] is None
    assert (tools["difference"], tools["tools"], tools["num_tool_errors"]) == (0.5, {"fold_fragment": 4}, 2)
    assert (tools["first_prompt"], tools["last_prompt"], tools["reduction"]) == (100, 25, 0.75)
    assert (tools["num_unmet"], tools["update_tokens"], tools["moved_tokens"]) == (1, [50, 10], 24)
    (idle,) = summarise([*records[2:], record("c", "tools", 1.0, [[0, 0, 150, 5]])], {"tools": "tools"}, PriceRatios())
    assert (idle["num_loops"], idle["first_prompt"], idle["last_prompt"], idle["reduction"]) == (2, 117, 67, 0.4286)
    spent = 1.25 * (206 + 50) + 0.1 * 44 + 5 * (18 + 10)
    assert tools["cost"] == pytest.approx(2 * spent / 1e6, abs=1e-9)


def test_what_a_summary_read_and_wrote_is_told_beside_the_completions() -> None:
    receipt = {"kept_tokens": 4, "moved_tokens": 0, "computed_tokens": 6}
    summary = {"input_tokens": 90, "output_tokens": 12}
    acm = {"receipt": receipt, "budget": {"unmet": None, "summary": summary}}
    answer = read_answer({"choices": [{"message": {"content": "x"}}], "usage": {"completion_tokens": 3}, "acm": acm})
    assert answer.summaries == (Completion(0, 0, 90, 12),)
    assert [one.prompt for one in answer.completions] == [10]
    for budget in (None, {"unmet": None}, {"unmet": None, "summary": None}):
        assert read_answer({"acm": {"receipt": receipt, "budget": budget}}).summaries == ()


def test_a_summary_behind_the_conversation_is_priced_by_what_it_found_in_the_cache() -> None:
    """A loop tells the budget of its last step twice, and it counts once."""
    receipt = {"kept_tokens": 4, "moved_tokens": 0, "computed_tokens": 6}
    counts = {"kept_tokens": 4900, "moved_tokens": 0, "computed_tokens": 100}
    summary = {"input_tokens": 5000, "output_tokens": 100, "form": "appended", **counts}
    budget = {"unmet": None, "summary": summary}
    step = {"receipt": receipt, "budget": budget, "operations": []}
    answer = read_answer({"acm": {"steps": [step], "budget": budget}})
    assert answer.summaries == (Completion(4900, 0, 100, 100),)
    fields = {"task": "t", "sample": "a", "way": "w", "score": 0.0, "error": "", "tools": {}, "num_errors": 0}
    record = fields | {"unmet": False, "seconds": 0.0, "completions": [], "update": [100, 100], "update_cached": 4900}
    (row,) = summarise([record], {"w": "w"}, PriceRatios())
    assert row["update_tokens"] == [100, 100]
    assert row["cost"] == pytest.approx((1.25 * 100 + 0.1 * 4900 + 5 * 100) / 1e6)


def test_a_task_that_no_way_can_do_is_at_the_floor() -> None:
    rows = [
        {"task": "t", "way": "a", "score": 0.0},
        {"task": "t", "way": "b", "score": 0.05},
        {"task": "u", "way": "a", "score": 0.0},
        {"task": "u", "way": "b", "score": 0.06},
        {"task": "all", "way": "a", "score": 0.0},
    ]
    assert at_the_floor(rows) == ["t"]


def test_an_answer_that_is_none_ends_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def odd(path: str, body: Any, key: str | None) -> Answer:
        return (
            (200, {"data": [{"id": "toy"}]}) if path == "/v1/models" else (200 if body else 404, "<html>hello</html>")
        )

    with openai_server(odd) as url:
        assert run(url, tmp_path) == 2
    assert "answered no chat completion: <html>hello" in capsys.readouterr().err
