"""One step out of vLLM's answers: the events here are written as vLLM 0.32 writes them."""

from __future__ import annotations

import json
from typing import Any

from acmserve.context.tools.tool import parsed_arguments
from acmserve.server.chat.calls import find_format_error, text_before, text_held_back
from acmserve.server.chat.message_builder import GroupBuilder
from acmserve.server.chat.model_step import Spoken, StepReader, read_whole, render_event

HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
CALL = {"index": 0, "id": "call-1", "type": "function", "function": {"name": "fold_fragment", "arguments": "{}"}}


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **fields: Any) -> str:
    return render_event(HEAD | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]} | fields)


def payloads(events: list[str]) -> list[dict[str, Any]]:
    return [json.loads(event.removeprefix("data: ")) for event in events]


def read(reader: StepReader, *events: str) -> list[dict[str, Any]]:
    return payloads([told for event in events for told in reader.take(event)])


def test_text_is_passed_on_and_calls_are_held_back() -> None:
    spoken = Spoken()
    reader = StepReader(spoken, 0, first=True)
    told = read(
        reader,
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "Let me"}),
        chunk({"content": " look.", "tool_calls": [CALL]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}),
        chunk({}, "tool_calls"),
        "data: [DONE]\n\n",
    )
    deltas = [event["choices"][0]["delta"] for event in told]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "Let me"}, {"content": " look."}]
    step = reader.step()
    assert step is not None
    assert step.finish_reason == "tool_calls"
    assert [call["id"] for call in step.calls] == ["call-1"]
    assert step.message["content"] == "Let me look."


def test_later_steps_look_like_the_first() -> None:
    spoken = Spoken()
    first = StepReader(spoken, 0, first=True)
    read(first, chunk({"role": "assistant", "content": ""}), chunk({"content": "One.\n"}), chunk({}, "stop"))
    spoken.end_step(last=False)
    later = StepReader(spoken, 5, first=False)
    told = read(
        later,
        chunk({"role": "assistant", "content": ""}, id="chatcmpl-2", created=9),
        chunk({"content": "Two."}, id="chatcmpl-2", usage={"completion_tokens": 2, "total_tokens": 12}),
    )
    (event,) = told
    assert (event["id"], event["created"]) == ("chatcmpl-1", 1)
    assert event["choices"][0]["delta"] == {"content": "\n\nTwo."}
    assert event["usage"] == {"completion_tokens": 7, "total_tokens": 17}


def test_a_silent_step_tells_the_client_nothing_but_who_speaks() -> None:
    spoken = Spoken(is_silent=True)
    reader = StepReader(spoken, 0, first=True)
    tokens = {"logprobs": {"content": []}, "token_ids": [7]}
    half = HEAD | {"choices": [{"index": 0, "delta": {"content": "<tool_call>"}, "finish_reason": None, **tokens}]}
    told = read(reader, chunk({"role": "assistant", "content": ""}), render_event(half), chunk({}, "length"))
    assert [event["choices"][0]["delta"] for event in told] == [{"role": "assistant", "content": ""}]
    step = reader.step()
    assert step is not None
    assert step.message["content"] == "<tool_call>"
    whole = read_whole(json.dumps(HEAD | {"choices": [{"message": step.message}]}).encode(), spoken)
    assert whole.message["content"] == "<tool_call>"
    assert spoken.message_texts() == {"content": None}


def test_text_in_the_chunk_that_ends_a_step_is_passed_on_before_it() -> None:
    reader = StepReader(Spoken(), 0, first=True)
    (told,) = read(reader, chunk({"content": "All."}, "length", usage=None))
    assert told["choices"][0] == {"index": 0, "delta": {"content": "All."}, "finish_reason": None}
    step = reader.step()
    assert step is not None
    assert step.payload["choices"][0] == {"index": 0, "delta": {}, "finish_reason": "length"}


def test_usage_errors_and_comments() -> None:
    reader = StepReader(Spoken(), 0, first=True)
    assert list(reader.take(": keep-alive\n\n")) == [": keep-alive\n\n"]
    assert (
        read(reader, chunk({}, "stop"), render_event(HEAD | {"choices": [], "usage": {"completion_tokens": 3}})) == []
    )
    step = reader.step()
    assert step is not None
    assert step.num_completion_tokens == 3
    assert not reader.failed
    error = 'data: {"error": {"message": "gone"}}\n\n'
    assert list(reader.take(error)) == [error]
    assert reader.failed


def test_a_whole_answer_says_what_its_stream_says() -> None:
    body = {
        **HEAD,
        "choices": [{"message": {"role": "assistant", "content": "Hi", "tool_calls": [], "refusal": None}}],
        "usage": {"completion_tokens": 4},
    }
    spoken = Spoken()
    step = read_whole(json.dumps(body).encode(), spoken)
    assert step.message == {"role": "assistant", "content": "Hi"}
    assert step.num_completion_tokens == 4
    assert spoken.message_texts() == {"content": "Hi"}


def test_arguments_that_are_nested_too_deeply_are_a_format_error() -> None:
    """A model that repeats one bracket writes as many as it may."""
    endless = "[" * 100_000
    assert parsed_arguments(endless) == endless
    call = CALL | {"function": {"name": "fold_fragment", "arguments": endless}}
    found = find_format_error("", {"tool_calls": [call]}, ())
    assert found == "the arguments of 'fold_fragment' are not a JSON object"


def test_a_mark_in_quotes_is_spoken_of_and_begins_no_call() -> None:
    marks = ("<tool_call>",)
    for quoted in ("Write `<tool_call>` first.", 'The tag "<tool_call>" and then \u201c<tool_call>\u201d.'):
        assert find_format_error(quoted, {"content": quoted}, marks) is None
        assert text_before(quoted, marks) == quoted
        broken = f"{quoted}\n<tool_call>\nsearch(7)"
        assert (
            find_format_error(broken, {"content": broken}, marks)
            == "what follows <tool_call> could not be read as a tool call"
        )
        assert text_before(broken, marks) == f"{quoted}\n"
        sent = quoted[: quoted.index("<")]
        assert sent + text_held_back(quoted, {"content": sent}, marks) == quoted
    assert find_format_error("`<tool_call>{", {"content": "`"}, marks) is not None
    cut = "Say `<tool_call>`.\n<tool_call>\n{"
    assert text_held_back(cut, {"content": "Say `"}, marks) == "", "half a call is no text"
    assert text_held_back("Fine.", {"content": "F"}, marks) == "", "nothing is held back without a mark"
    assert text_held_back("", {"content": None}, marks) == ""


class WatchedChunk(dict[str, Any]):
    """Counts how often it is looked at."""

    num_looks = 0

    def get(self, *args: Any) -> Any:
        WatchedChunk.num_looks += 1
        return super().get(*args)


def test_a_chunk_of_a_group_is_read_for_its_own_answer_only() -> None:
    """Every answer of a group of n has its chunks. Read for all of them, they would be n times as many."""
    num_answers = 64
    group = GroupBuilder(num_answers)
    for finish_reason in (None, "stop"):
        for index in reversed(range(num_answers)):
            assert not group.is_over
            choice = {"index": index, "delta": {"content": f"{index} "}, "finish_reason": finish_reason}
            group.add(WatchedChunk(choices=[choice]))
    assert group.is_over
    assert [message["content"] for message in group.messages()] == [f"{index} {index} " for index in range(num_answers)]
    assert WatchedChunk.num_looks <= 2 * 2 * num_answers
