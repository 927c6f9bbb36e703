"""What it costs to find the session of a long request: counted, not timed. `acmserve bench micro identity` times it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acmserve.server.identity import fingerprint, units
from acmserve.server.identity.beginnings import MAX_ALIKE
from acmserve.server.identity.content import MAX_COMPARED
from acmserve.server.identity.families import Families
from acmserve.server.identity.fingerprint import Fingerprint, HistoryLikeness
from acmserve.server.identity.placement import FoundSession
from acmserve.server.identity.prompt import PromptUnits, read_prompt
from acmserve.server.identity.thread_hints import ThreadHints
from tests.support.server.clients import SUMMARY_SYSTEM, ChatClient, work
from tests.support.walk import count_walk


def long_body(num_steps: int, label: str) -> Any:
    """About 320 tokens a step: a call with arguments of its own, and a long result."""
    client = ChatClient().user(f"Find every entry about the {label}, and list them by year.")
    for n in range(num_steps):
        client.call("read", f"row {n} of the ledger " * 60, shelf=n, path=f"{label}/ledger{n}", row="a b")
    return client.body


def read_again(body: Any) -> PromptUnits:
    """The prompt of a body as it comes: new objects."""
    prompt = read_prompt(json.loads(json.dumps(body)))
    assert prompt is not None
    return prompt


@pytest.mark.parametrize("changes", [False, True])
def test_a_request_that_repeats_32k_tokens_costs_what_is_new(changes: bool) -> None:
    """Counted: calls that are parsed, hashes that are looked up, units that are compared, functions entered."""
    label, families = f"harbour {changes}", Families()
    families.place("", "acm-1", read_again(long_body(100, label)), ThreadHints(), is_explicit=False)
    later = long_body(102, label)
    later["messages"][1]["content"] += " It is nine o'clock." * changes
    before, prompts = families.work, list[PromptUnits]()
    walk = count_walk(lambda: prompts.append(read_again(later)))
    [prompt] = prompts
    assert prompt.num_chars > 120_000
    assert prompt.num_spelled == 2
    assert families.find("", prompt) == FoundSession("acm-1")
    looked, compared = (new - old for new, old in zip(families.work, before, strict=True))
    assert looked <= 2 * len(prompt)
    assert compared <= (len(prompt) if changes else 0)
    assert walk.into("server/identity/units.py") <= len(later["messages"]) + 8


@pytest.mark.parametrize("is_held", [True, False], ids=["as it is", "control"])
def test_a_request_is_compared_with_a_conversation_once(is_held: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its content, and for its thread. The control forgets what was found out."""
    compared = list[int]()
    compare = fingerprint._compare_history

    def counted(conversation: Fingerprint, prompt: PromptUnits) -> HistoryLikeness:
        compared.append(id(conversation))
        return compare(conversation, prompt)

    monkeypatch.setattr(fingerprint, "_compare_history", counted)
    if not is_held:
        monkeypatch.setattr(PromptUnits, "compared", property(lambda _: {}))
    families = Families()
    families.place("", "acm-1", read_again(long_body(20, "weir")), ThreadHints(), is_explicit=False)
    later = long_body(22, "weir")
    later["messages"][1]["content"] += " It is nine o'clock."
    prompt = read_again(later)
    assert families.find("", prompt) == FoundSession("acm-1")
    families.place("", "acm-1", prompt, ThreadHints(), is_explicit=False)
    assert (len(compared) == 1) == is_held


@pytest.mark.parametrize(("num_alike", "num_looked_at"), [(MAX_ALIKE, MAX_ALIKE), (200, 0)])
def test_whose_first_part_it_is_costs_a_bounded_number_of_looks(num_alike: int, num_looked_at: int) -> None:
    """Conversations that part behind 80 of 100 steps, and a summary of 96 of them. Among many, none is looked for."""
    families = Families()
    for n in range(num_alike):
        client = work(work(ChatClient().user("List every ferry."), "ferry", 80), f"quay {n}", 20)
        families.place("", f"acm-{n}", read_again(client.body), ThreadHints(), is_explicit=False)
    ask = {"role": "user", "content": "Condense the above."}
    body = client.side(SUMMARY_SYSTEM, *client.messages[:-8], ask).body
    prompt = read_again(body)
    found = list[FoundSession | None]()
    walk = count_walk(lambda: found.append(families.find("", prompt)))
    assert found == [FoundSession(f"acm-{num_alike - 1}") if num_looked_at else None]
    assert walk.into("server/identity/beginnings.py") <= 8 * num_looked_at + 16
    assert walk.into("server/identity/fingerprint.py") <= 4 * num_looked_at + 4 * MAX_COMPARED + 16


def test_control_a_call_that_is_spelled_anew_is_parsed_and_is_the_same() -> None:
    first = read_again(long_body(20, "quarry"))
    spelled = long_body(20, "quarry")
    for message in spelled["messages"]:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), indent=1)
    again = read_again(spelled)
    assert (first.num_spelled, again.num_spelled) == (20, 20)
    assert (again.digests, again.chain, again.num_chars) == (first.digests, first.chain, first.num_chars)


def test_an_object_and_its_json_are_the_same_call_and_another_writer_is_not() -> None:
    def digest(arguments: object, kind: str = "function_call") -> tuple[int, ...]:
        prompt = read_again({"input": [{"type": kind, "name": "look", "arguments": arguments}]})
        return prompt.digests

    assert digest({"b": [1, True], "a": "x"}) == digest('{"a":"x", "b": [1,true]}')
    assert digest("{'a': 1}") != digest({"a": 1})
    assert digest({"a": 1}) != digest({"a": True})
    assert digest({"a": 1}, "message") != digest({"a": 1})


def test_calls_that_are_known_by_their_spelling_are_bounded_and_hold_no_text() -> None:
    for n in range(units.MAX_LATELY_CALLED + 50):
        units.UnitReader().read({"type": "function_call", "name": "bound", "arguments": f'{{"at": {n}}}'})
    assert len(units._lately_called) == units.MAX_LATELY_CALLED
    assert all(type(number) is int for key, known in units._lately_called.items() for number in (key, *known))
