"""The loop of a recursive language model: what ends it, what the model is told, and how it plays in `acmserve eval`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.bench.eval.rlm.loop import (
    LAST,
    NUM_ITERATIONS,
    OUTPUT,
    FinalAnswer,
    answer_in_session,
    code_blocks,
    final_answer,
)
from acmserve.bench.eval.rlm.python_session import PythonSession
from acmserve.cli import main as cli
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.observations import ObservationRule, has_final_answer, parse_observations
from tests.support.server.fake_openai import Answer, ToyModel, openai_server
from tests.support.server.fake_openai import says as completion


def says(*lines: str) -> tuple[str, list[list[Message]], list[bool]]:
    """The answer of a loop whose model says these lines, the last one for ever, and what it was asked."""
    asked: list[list[Message]] = []
    ends: list[bool] = []

    def ask(messages: list[Message], is_last: bool) -> str:
        asked.append(list(messages))
        ends.append(is_last)
        return lines[min(len(asked), len(lines)) - 1]

    with PythonSession("a b c", lambda prompts: [prompt.upper() for prompt in prompts]) as session:
        return answer_in_session(ask, "How many?", 5, session), asked, ends


@pytest.mark.parametrize(
    ("answer", "final"),
    [
        ("FINAL(388)", FinalAnswer("388", False)),
        ("So it is.\n  FINAL(a (b) c)", FinalAnswer("a (b) c", False)),
        ("FINAL_VAR(count)", FinalAnswer("count", True)),
        ('FINAL_VAR("count")', FinalAnswer("count", True)),
        ("FINAL(two\nlines)", FinalAnswer("two\nlines", False)),
        ("FINAL(Answer: 42)\n\nI counted every line with a regex (see above).", FinalAnswer("Answer: 42", False)),
        ("FINAL_VAR(count)\n\nIt holds the number of lines (84).", FinalAnswer("count", True)),
        ("FINAL(42) is what I found", None),
        ("```repl\nFINAL(1)\n```", None),
        ("```repl\nn = 1\nFINAL(1)", None),
        ("``` repl\nFINAL(1)\n```", None),
        ("I say FINAL(1) soon", None),
        ("", None),
    ],
)
def test_final_answers_are_read_outside_of_code(answer: str, final: FinalAnswer | None) -> None:
    assert final_answer(answer) == final


@given(st.lists(st.sampled_from(["```", "repl", "\n", " ", "FINAL(", "FINAL_VAR(", "a", ")", "is "]), max_size=12))
def test_what_the_loop_takes_for_final_the_server_takes_for_final(parts: list[str]) -> None:
    """Else a question would end without its map. What the loop alone refuses is followed by an observation."""
    answer = "".join(parts)
    if final_answer(answer) is not None:
        assert has_final_answer({"role": "assistant", "content": answer})


def test_everything_that_the_loop_says_to_an_answer_is_an_observation() -> None:
    _, asked, _ = says("Let me think.", "FINAL_VAR(count)", "FINAL(3", "```python\nprint(1)\n```")
    observed = [one for one in asked[-1][2:] if one["role"] == "user"]
    assert len(observed) == NUM_ITERATIONS
    rule = parse_observations([OUTPUT], "acm.observations")
    assert all(rule.takes(one, {"role": "assistant", "content": "Prose."}) for one in observed)


def test_code_is_run_and_its_output_is_an_observation() -> None:
    answer, asked, ends = says("```repl\nn = len(context.split())\nprint(n)\n```", "Good.\nFINAL_VAR(n)")
    assert (answer, len(asked), ends) == ("3", 2, [False, False])
    assert "a b c" not in json.dumps(asked[0])
    observed = asked[1][-1]
    assert observed == {"role": "user", "content": "REPL output:\n3\n"}
    assert ObservationRule().takes(observed, asked[1][-2])


def test_what_the_model_does_wrong_it_is_told() -> None:
    answer, asked, _ = says("Let me think.", "FINAL_VAR(count)", "```python\nprint(llm_query('x'))\n```", "FINAL(3)")
    assert answer == "3"
    assert "neither a ```repl block nor FINAL" in str(asked[1][-1]["content"])
    assert "no variable count" in str(asked[2][-1]["content"])
    assert asked[3][-1]["content"] == "REPL output:\nX\n"


def test_after_thirty_iterations_the_answer_is_asked_for() -> None:
    block = "```repl\nprint(1)\n```"
    answer, asked, ends = says(*([block] * NUM_ITERATIONS), "It is 3.")
    assert (answer, len(asked), NUM_ITERATIONS) == ("It is 3.", 31, 30)
    assert ends == [False] * 30 + [True]
    assert str(asked[-1][-1]["content"]).endswith(LAST)
    assert code_blocks(f"{block} and {block}") == ["print(1)\n", "print(1)\n"]


def test_the_agent_plays_in_an_evaluation_and_each_request_is_counted(tmp_path: Path) -> None:
    """A toy server as the model: it looks at the length of the text first, and asks for a label by `llm_query`."""

    def answer(body: Any) -> Answer:
        last = body["messages"][-1]["content"]
        said = "FINAL(Label: tree)"
        if last.startswith("The variable"):
            said = "```repl\nprint(len(context))\nlabel = llm_query('name a label')\n```"
        elif last == "name a label":
            said = "tree"
        return completion(said, {"prompt_tokens": 50, "completion_tokens": 5})

    arguments = ["--tasks", "oolong", "--samples", "1", "--ways", "rlm,rlm-map", "--output", str(tmp_path)]
    with openai_server(ToyModel(answer)) as url:
        assert cli(["eval", url, *arguments]) == 0
    report = json.loads((tmp_path / "results.json").read_text())
    assert report["skipped"] == {"rlm-map": "the server has no acmserve"}
    assert "an agent that writes code: the steps of its paper, of 512 tokens" in (tmp_path / "page.md").read_text()
    [row] = report["rows"]
    assert (row["num_samples"], row["num_requests"], row["prompt_tokens"]) == (4, 12, 600)
    scored = {record["sample"].rpartition("/")[2]: record["answer"] for record in report["records"]}
    assert set(scored.values()) == {"Label: tree"}


def test_a_short_answer_does_not_cut_the_code_of_a_step(tmp_path: Path) -> None:
    """`--max-tokens` is of answers, and of those that code gets. A step that writes code has a limit of its own."""
    steps, queries = [], []

    def answer(body: Any) -> Answer:
        if body["messages"][0]["role"] != "system":
            queries.append(body["max_tokens"])
            return completion("tree", {})
        steps.append(body["max_tokens"])
        return completion("```repl\nprint(llm_query('name a label'), 'x' * 999)\n```", {})

    limits = ["--max-tokens", "64", "--step-tokens", "700", "--steps", "3", "--printed", "100"]
    toy = ToyModel(answer)
    with openai_server(toy) as url:
        arguments = ["--tasks", "oolong", "--set", "oolong.questions=1", "--samples", "1", "--ways", "rlm", *limits]
        assert cli(["eval", url, *arguments, "--output", str(tmp_path)]) == 0
    assert steps == [700] * 4
    assert queries == [64] * 4
    shown = [one["content"] for one in toy.bodies[-2]["messages"] if one["content"].startswith("REPL output")]
    assert len(shown) == 3
    assert all(100 < len(one) < 250 for one in shown)
