"""An agent whose conversation goes on over all questions about a text, and ones with passages or a memory of it."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from acmserve.bench.eval.baselines.memagent import parts
from acmserve.bench.eval.baselines.retrieval import retrieve
from acmserve.bench.eval.main import parser, samples_of
from acmserve.bench.eval.rlm.loop import ASKED_NEXT
from acmserve.bench.eval.rlm.play import MEMORY
from acmserve.bench.eval.tasks.task import EvalSample
from acmserve.cli import main as cli
from tests.support.server.fake_openai import Answer, ToyModel, openai_server, says

ARGUMENTS = ["--tasks", "oolong", "--set", "oolong.questions=3", "--samples", "1"]
LOOKS = "```repl\nseen = [*globals().get('seen', []), llm_query('who')]\nprint(len(seen), seen[-1])\n```"


class Looker(ToyModel):
    """It counts in a variable how often it has looked, and answers then. `refused` is a question that is too long."""

    def __init__(self, most: int = 10**6, refused: str = "") -> None:
        super().__init__(self._answer, most)
        self._refused = refused

    def _answer(self, body: Any) -> Answer:
        asked = [str(one["content"]) for one in body["messages"]]
        if asked == ["who"]:
            return says("it", {"prompt_tokens": 1, "completion_tokens": 1})
        if self._refused and any(self._refused in one for one in asked):
            return 400, {"error": {"message": "too long"}}
        said = "So.\nFINAL(Label: tree)" if asked[-1].startswith("REPL output") else LOOKS
        return says(said, {"prompt_tokens": 50, "completion_tokens": 5})


def samples() -> list[EvalSample]:
    return samples_of(parser().parse_args(["http://nowhere", *ARGUMENTS]))


def run(toy: ToyModel, folder: Path, way: str = "rlm-shared", code: int = 0) -> dict[str, Any]:
    """The report, without what no two runs share."""
    with openai_server(toy) as url:
        assert cli(["eval", url, *ARGUMENTS, "--ways", way, "--output", str(folder)]) == code
    report: dict[str, Any] = {} if code else json.loads((folder / "results.json").read_text())
    for row in [*report.get("rows", ()), *report.get("records", ())]:
        del row["seconds"]
    return report


def of_agent(toy: ToyModel) -> list[list[dict[str, str]]]:
    """The prompts of the agent, without those of its code."""
    return [body["messages"] for body in toy.bodies if body["messages"][0]["role"] == "system"]


def test_one_conversation_and_its_variables_go_on_over_all_questions(tmp_path: Path) -> None:
    toy = Looker()
    report = run(toy, tmp_path)
    prompts = of_agent(toy)
    assert [len(prompt) for prompt in prompts] == [2, 4, 6, 8, 10, 12]
    assert all(longer[: len(shorter)] == shorter for shorter, longer in pairwise(prompts))
    observed = [one["content"] for one in prompts[-1] if one["content"].startswith("REPL output")]
    assert observed == [f"REPL output:\n{number} it\n" for number in (1, 2, 3)]
    questions = [sample.question for sample in samples()]
    assert questions[0] in prompts[0][-1]["content"]
    assert [prompts[at][-1]["content"] for at in (2, 4)] == [ASKED_NEXT.format(question=one) for one in questions[1:]]
    assert [record["answer"] for record in report["records"]] == ["Label: tree"] * 3
    assert [len(record["completions"]) for record in report["records"]] == [3] * 3
    (row,) = report["rows"]
    assert (row["num_samples"], row["num_contexts"]) == (3, 1)


def test_a_conversation_that_was_cut_off_is_begun_anew(tmp_path: Path) -> None:
    """Its variables are gone, so questions that were answered are asked again."""
    whole = run(Looker(), tmp_path / "whole")
    run(Looker(most=4), tmp_path / "cut", code=2)
    again = Looker()
    assert run(again, tmp_path / "cut") == whole
    assert len(again.bodies) == 9


def test_a_refused_question_leaves_nothing_in_the_conversation(tmp_path: Path) -> None:
    second = samples()[1].question
    toy = Looker(refused=second)
    report = run(toy, tmp_path)
    assert [bool(record["error"]) for record in report["records"]] == [False, True, False]
    last = of_agent(toy)[-1]
    assert len(last) == 8
    assert not any(second in one["content"] for one in last)
    assert last[-1]["content"] == "REPL output:\n2 it\n"


def test_code_is_told_what_the_server_refuses_it_and_keeps_its_variables(tmp_path: Path) -> None:
    toy = Looker()
    toy._reply = lambda body: (400, {}) if len(body["messages"]) == 1 else toy._answer(body)
    report = run(toy, tmp_path)
    assert [record["answer"] for record in report["records"]] == ["Label: tree"] * 3
    observed = [one["content"] for one in of_agent(toy)[-1] if one["content"].startswith("REPL output")]
    assert [one.split()[2:4] for one in observed] == [[str(number), "Error:"] for number in (1, 2, 3)]


def test_passages_stand_behind_the_question(tmp_path: Path) -> None:
    toy = Looker()
    run(toy, tmp_path, "rlm-rag")
    for sample, prompt in zip(samples(), of_agent(toy)[::2], strict=True):
        assert len(prompt) == 2
        assert sample.question in prompt[1]["content"]
        assert all(chunk in prompt[1]["content"] for chunk in retrieve(sample.context, sample.question))


def test_a_memory_of_the_text_stands_behind_the_question(tmp_path: Path) -> None:
    """It is written anew for each question, before the agent begins."""
    toy, written = Looker(), []

    def reply(body: Any) -> Answer:
        asked = str(body["messages"][0]["content"])
        if "Write your new memory" not in asked:
            return toy._answer(body)
        written.append(asked)
        return says(f"memory {len(written)}", {})

    toy._reply = reply
    run(toy, tmp_path, "rlm-memagent")
    pieces = parts(samples()[0].context)
    assert len(written) == 3 * len(pieces)
    for number, (sample, prompt) in enumerate(zip(samples(), of_agent(toy)[::2], strict=True), 1):
        memory = f"memory {number * len(pieces)}"
        assert prompt[1]["content"].endswith(MEMORY.format(question=sample.question, memory=memory))
