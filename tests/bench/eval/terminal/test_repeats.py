"""What an agent in a shell repeats: shown or taken out, in its task or elsewhere, and where nobody can tell."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

import httpx
import pytest

from acmserve.bench.eval.baselines.way_limits import WayLimits
from acmserve.bench.eval.page import as_markdown
from acmserve.bench.eval.play import Play
from acmserve.bench.eval.prices import PriceRatios
from acmserve.bench.eval.summary import summarise
from acmserve.bench.eval.table import REPEATS_TABLE
from acmserve.bench.eval.target import Target
from acmserve.bench.eval.tasks.task import SHELL, EvalSample
from acmserve.bench.eval.terminal.repeats import RepeatedCommand, count_repeats, find_repeats
from acmserve.bench.eval.ways import find_way
from acmserve.context.transcript.message import Message
from tests.support.server.fake_openai import says

NAMES = ("num_commands", "num_repeats_shown", "num_shown_elsewhere", "num_reexplored", "num_reexplored_elsewhere")


def runs(*commands: str) -> str:
    return "".join(f"```bash\n{command}\n```\n" for command in commands)


def conversation(*said: str) -> list[Message]:
    """A system message, a task, and each answer with what the user says behind it."""
    found: list[Message] = [{"role": "system", "content": "s"}, {"role": "user", "content": "Next task: a"}]
    for answer in said:
        found += [{"role": "assistant", "content": answer}, {"role": "user", "content": "<output>"}]
    return found


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"),
    [
        (conversation(runs("ls")), runs("ls"), [({3}, False)]),
        (conversation(runs("ls"), runs("pwd"), runs("  ls \n")), runs("ls"), [({3, 7}, False)]),
        (conversation(runs("ls", "pwd")), runs("pwd", "cat a", "ls"), [({3}, False), ({3}, False)]),
        (conversation(runs("ls")), runs("ls -l"), []),
        (conversation(), runs("ls", "ls"), []),
        (conversation(runs("")), runs(""), []),
        (conversation(runs("ls") + "FINAL(done)"), runs("ls"), []),
        (conversation(runs("ls")), runs("ls") + "FINAL(done)", [({3}, False)]),
        (conversation("```python\nls\n```"), runs("ls"), []),
    ],
)
def test_a_repeat_is_a_command_whose_output_was_told(
    prompt: list[Message], answer: str, expected: list[tuple[set[int], bool]]
) -> None:
    assert find_repeats(prompt, 1, answer) == [RepeatedCommand(frozenset(at), elsewhere) for at, elsewhere in expected]


def test_of_a_command_of_this_task_its_outputs_in_this_task_count() -> None:
    prompt = [*conversation(runs("ls"), "FINAL(done)")[:-1], *conversation(runs("ls"))[1:]]
    assert find_repeats(prompt, 5, runs("ls")) == [RepeatedCommand(frozenset({7}), False)]
    assert find_repeats(prompt[:6], 5, runs("ls")) == [RepeatedCommand(frozenset({3}), True)]


@pytest.mark.parametrize(
    ("removed", "counts"),
    [((), (9, 2, 1, 0, 0)), ({3}, (9, 2, 1, 0, 0)), ({3, 5}, (9, 1, 1, 1, 0)), ({3, 5, 7}, (9, 0, 0, 2, 1))],
)
def test_it_is_a_reexploration_once_no_output_is_left(removed: Collection[int], counts: Sequence[int]) -> None:
    repeats = [RepeatedCommand(frozenset({3, 5}), False), RepeatedCommand(frozenset({7}), True)]
    assert list(count_repeats(9, repeats, removed).items()) == list(zip(NAMES, counts, strict=True))


def played(
    way: str, script: Sequence[str], hidden: Sequence[Collection[int] | None], before: Sequence[str] = ()
) -> dict[str, Any]:
    """The record of a task in which the model says a line of the script to each request.

    `hidden` is what the server says to each question about its session. To None it answers that there is none.
    """
    lines, told = iter(script), iter(hidden)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            return httpx.Response(204)
        if request.method == "POST":
            return httpx.Response(200, json=says(next(lines), {"prompt_tokens": 9, "completion_tokens": 2})[1])
        assert request.url.path.endswith("/messages")
        assert request.headers["X-Cache-Salt"] == play.salt
        if (away := next(told)) is None:
            return httpx.Response(404, json={})
        start, num = (int(request.url.params[name]) for name in ("start", "limit"))
        rows = [{"index": at, "state": "evicted" if at in away else "whole"} for at in range(start, start + num)]
        return httpx.Response(200, json={"data": rows})

    sample = EvalSample("terminal", "shell", "x", "Do it.", "", facts={"setup": "true", "check": "true"}, agent=SHELL)
    earlier = [json.dumps({"solved": True, "messages": conversation(*before)[1:-1]})] if before else []
    with httpx.Client(transport=httpx.MockTransport(answer)) as http:
        target = Target("http://toy", "toy", True, {}, http)
        play = Play(target, sample, way, "run", 900, [("q", one) for one in earlier])
        record = play.record(find_way(way).play(play), 1.0)
    assert next(lines, None) is next(told, None) is None
    return record


def test_contexts_of_the_same_tasks_share_no_cache() -> None:
    """A prompt of one task is the same in each context. Questions about a text have one cache in all contexts."""
    with httpx.Client() as http:
        target = Target("http://toy", "toy", True, {}, http)

        def salt(group: str, agent: str) -> str:
            return Play(
                target, EvalSample("t", "s", "x", "Do it.", "", group=group, agent=agent), "way", "run", 900
            ).salt

        assert salt("a", SHELL) == salt("a", SHELL)
        assert salt("a", SHELL) != salt("b", SHELL)
        assert salt("a", "") == salt("b", "")


def counts_of(record: dict[str, Any]) -> tuple[int, ...] | None:
    return tuple(record["repeats"].values()) if "repeats" in record else None


SCRIPT = (runs("echo a"), runs("echo a"), runs("echo b"), runs("echo a"), runs("echo b") + "FINAL(done)")


def test_a_play_asks_its_session_once_for_each_answer_that_repeats() -> None:
    record = played("shell:recency", SCRIPT, [(), {3, 5}, {3, 5}])
    assert counts_of(record) == (5, 2, 0, 1, 0)
    assert list(record["repeats"]) == list(NAMES)


@pytest.mark.parametrize("way", ["shell", "shell-isolated"])
def test_without_a_session_nothing_is_taken_out(way: str) -> None:
    assert counts_of(played(way, SCRIPT, [])) == (5, 3, 0, 0, 0)


def test_commands_of_earlier_tasks_count_in_one_session_alone() -> None:
    script, before = (runs("echo a"), "FINAL(done)"), (runs("echo a"), "FINAL(done)")
    assert counts_of(played("shell:recency", script, [{3}], before)) == (1, 0, 0, 1, 1)
    assert counts_of(played("shell:recency", script, [{5}], before)) == (1, 1, 1, 0, 0)
    assert counts_of(played("shell", script, [], before)) == (1, 1, 1, 0, 0)
    assert counts_of(played("shell-isolated", script, [], before)) == (1, 0, 0, 0, 0)


def test_where_the_server_does_not_tell_nothing_is_counted() -> None:
    assert counts_of(played("shell:recency", SCRIPT, [(), None])) is None


def test_counts_are_summed_where_all_records_have_them() -> None:
    records = [
        played("shell-isolated", SCRIPT, []) | {"sample": "a"},
        played("shell:recency", SCRIPT, [(), {3, 5}, {3, 5}]) | {"sample": "a"},
        played("shell:recency", SCRIPT, [(), (), ()]) | {"sample": "b"},
    ]
    ways = {"shell-isolated": "shell-isolated", "shell:recency": "shell-isolated"}

    def report_of(found: Sequence[dict[str, Any]]) -> dict[str, Any]:
        head = {"model": "toy", "has_acm": True, "num_samples": 2, "seed": 0, "run": "r", "budget": 900, "ways": ways}
        head |= {"num_planned": 3, "num_played": 3, "skipped": {}, "settings": [], "limits": asdict(WayLimits())}
        prices = {"write": 1.25, "read": 0.1, "output": 5, "base": 1}
        return head | {"prices": prices, "rows": summarise(found, ways, PriceRatios())}

    report = report_of(records)
    assert list(REPEATS_TABLE.rows(report)) == [
        ["`shell-isolated`", "1", "5", "3", "0", "0", "0"],
        ["`shell:recency`", "2", "10", "5", "0", "1", "0"],
    ]
    assert "## Repeated commands\n" in as_markdown(report)
    assert "| shell:recency | 2 | 10 | 5 | 0 | 1 | 0 |" in as_markdown(report)

    del records[2]["repeats"]
    older = report_of(records)
    assert [row[0] for row in REPEATS_TABLE.rows(older)] == ["`shell-isolated`"]
    del records[0]["repeats"], records[1]["repeats"]
    assert "Repeated commands" not in as_markdown(report_of(records))
