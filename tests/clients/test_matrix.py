"""What the model of the matrix says, and what its checks find, without any client."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.clients import facts
from tests.support.clients.errand import NOTED, SUBMIT, answer
from tests.support.clients.long_walks import check_held
from tests.support.clients.matrix import (
    FAILED,
    OK,
    RESULT,
    CheckFailed,
    Row,
    require,
    table,
    write_row,
)
from tests.support.clients.page import PAGE, renewed
from tests.support.clients.recorder import Exchange
from tests.support.clients.sessions_api import Fold
from tests.support.clients.walk import is_held

BASH = {"name": "bash", "parameters": {"properties": {"command": {"type": "string"}}, "required": ["command"]}}
AGENT = {"name": "Agent", "parameters": {"properties": {"prompt": {"type": "string"}}, "required": ["prompt"]}}


def prompt(*messages: tuple[str, str], tools: tuple[object, ...] = (BASH,)) -> str:
    listed = "\n".join(json.dumps({"type": "function", "function": tool}) for tool in tools)
    system = f"Rules.\n\n# Tools\n<tools>\n{listed}\n</tools>\nMore." if tools else "Rules."
    said = [("system", system), *messages]
    return "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in said) + "<|im_start|>assistant\n"


def result(text: str) -> tuple[str, str]:
    return "user", f"\n<tool_response>\n{text}\n</tool_response>"


def test_an_errand_goes_from_call_to_call_to_its_end() -> None:
    said = [("user", "Please do errand 3: 2 steps")]
    commands = []
    for _ in range(2):
        line = answer(prompt(*said))
        commands.append(json.loads(line.partition("\n")[2].rpartition("\n")[0])["arguments"]["command"])
        said += [("assistant", line), result("errand 9: 9 steps, errand-3/step-9.txt")]
    assert commands == ["cat errand-3/step-1.txt", "cat errand-3/step-2.txt"]
    assert answer(prompt(*said)) == "Errand 3 is done."


def test_a_summary_goes_on_where_it_was_written() -> None:
    said = [
        ("user", "errand 3: 2 steps"),
        ("assistant", answer(prompt(("user", "errand 3: 2 steps")))),
        result("A boat."),
    ]
    summary = answer(prompt(*said, ("user", "Write an <analysis> and a <summary> of this.")))
    assert "errand 3: 2 steps" in summary
    assert "errand-3/step-2.txt" in answer(prompt(("user", summary)))


def test_a_helper_is_started_once() -> None:
    said = [("user", "errand 3: 1 steps, helper")]
    line = answer(prompt(*said, tools=(BASH, AGENT)))
    assert '"errand 30: 2 steps"' in line
    assert "errand-3/step-1" in answer(prompt(*said, ("assistant", line), result("Done."), tools=(BASH, AGENT)))


def test_who_asks_for_a_command_at_the_end_gets_it() -> None:
    said = [
        ("user", f"errand 3: 1 steps. Then run {SUBMIT}."),
        ("assistant", "cat errand-3/step-1.txt"),
        result("A boat."),
    ]
    assert f"echo {SUBMIT}" in answer(prompt(*said))


def test_without_an_errand_there_is_little_to_say() -> None:
    assert answer(prompt(("user", "Name this."), tools=())) == NOTED


def exchange(path: str, answer: str, **body: object) -> Exchange:
    return Exchange("POST", path, {}, dict(body), 200, {}, answer)


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", {"choices": [], "acm": {"session_id": "s"}}),
        ("/v1/responses", {"type": "response.completed", "response": {"acm": {"session_id": "s"}}}),
        ("/v1/messages?beta=true", {"type": "message_delta", "delta": {}, "acm": {"session_id": "s"}}),
    ],
)
def test_a_session_is_found_in_the_stream_of_every_route(path: str, event: object) -> None:
    assert facts.session_of(exchange(path, f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n")) == "s"
    assert facts.session_of(exchange(path, 'data: {"choices": []}\n\n')) is None


def test_new_text_is_what_no_earlier_request_had() -> None:
    first = exchange("/v1/messages", "{}", system="A mill.\nclean", messages=[{"content": "Hello."}])
    now = exchange(
        "/v1/messages", "{}", system="A mill.\nchanged", messages=[{"content": "Hello."}, {"content": "Bye."}]
    )
    assert facts.new_text([first], now) == "changed\nBye."


def test_what_a_summary_adds_is_its_instruction_and_what_is_said_once_more() -> None:
    def asked(*texts: str) -> Exchange:
        return exchange("/v1/chat/completions", "{}", messages=[{"content": text} for text in texts])

    conversation = [asked("A mill.", "A boat."), asked("A mill.", "A boat.", "A mill.")]
    first = asked("Condense.", "A mill.\nA boat.\nBriefly.")
    assert facts.added_text(conversation, [], first) == "Condense.\nBriefly."
    again = asked("Condense.", "A mill.\nA mill.\nA mill.\nA boat.\nBriefly.")
    assert facts.added_text(conversation, [first], again) == "A mill.\nBriefly."
    assert facts.new_text([*conversation, first], again) == ""


def under_budget(num_served: int, evicted: int = 0, unmet: object = None) -> Exchange:
    told = {"budget": {"evicted_tokens": evicted, "unmet": unmet}, "receipt": {"prompt_tokens": num_served}}
    return exchange("/v1/chat/completions", json.dumps({"acm": told}))


def test_a_budget_that_was_reached_is_held() -> None:
    served = [under_budget(90)] * 50
    check_held([*served, under_budget(60, 40), *served], 100)
    for made in (
        [*served, *served],
        [*served, under_budget(60, 40)],
        [*served, under_budget(101, 40), *served],
        [*served, under_budget(90, 40, {"tokens_over": 1}), *served],
        [*served, under_budget(60, 40), exchange("/v1/chat/completions", "{}"), *served],
    ):
        with pytest.raises(CheckFailed):
            check_held(made, 100)


def test_a_fold_ends_with_its_text_and_not_in_silence() -> None:
    fold = Fold("the river", "f1", 9)

    def asked(text: str, *dropped: str) -> Exchange:
        told = {"acm": {"session_id": "s", "dropped": [{"kind": "fragment", "id": name} for name in dropped]}}
        return exchange("/v1/messages", json.dumps(told), messages=[{"content": text}])

    assert is_held(fold, [asked("By the river."), asked("By the river. On.")])
    assert not is_held(fold, [asked("By the river."), asked("A summary.", "f1"), asked("On.")])
    for made in (asked("A summary."), asked("A summary.", "f2"), asked("By the river.", "f1")):
        with pytest.raises(CheckFailed):
            is_held(fold, [made])


def test_the_page_of_clients_is_what_the_results_say() -> None:
    """`make clients` makes it anew."""
    page = PAGE.read_text(encoding="utf-8")
    assert renewed(page, json.loads(RESULT.read_text(encoding="utf-8"))) == page
    assert renewed(page, {"clients": {}}) != page


def test_a_failed_check_stays_failed_and_is_told(tmp_path: Path) -> None:
    row = Row("a client", "1.0")
    for holds in (False, True):
        with row.check("session"):
            require(holds, "no session")
    with row.check("turns"):
        require(True, "")
    with row.check("cached"):
        raise KeyError("usage")
    assert row.found == {"session": FAILED, "turns": OK, "cached": FAILED}
    assert "session: no session" in row.failed()
    file = tmp_path / "clients.json"
    write_row(row, file, datetime(2026, 11, 24, tzinfo=UTC))
    write_row(Row("b client", "2.0"), file)
    rows = json.loads(file.read_text())["clients"]
    assert rows["a client"]["date"] == "2026-11-24"
    assert table(rows).splitlines()[2].startswith("| a client | 1.0 | - | failed | ok |")


def test_a_table_names_its_commit_once_every_row_is_of_it(tmp_path: Path) -> None:
    """The control is the first file of the second commit, whose other row is older."""
    file = tmp_path / "clients.json"

    def written(client: str, commit: str) -> str | None:
        machine = {"commit": commit, "changed": [], "cpu": "a processor"}
        write_row(Row(client, "1.0"), file, machine=machine)
        named: str | None = json.loads(file.read_text()).get("machine", {}).get("commit")
        return named

    assert [written(client, "abc") for client in "ab"] == ["abc", "abc"]
    assert written("a", "def") is None
    assert written("b", "def") == "def"
