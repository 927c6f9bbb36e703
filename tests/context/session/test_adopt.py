"""A client's history comes in again and again, in other words, cut short, or changed: edits stick where they can."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.context.alignment.normal_form import digest_normal_form
from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_messages
from acmserve.context.session.carrying.record import DroppedEdit
from acmserve.context.session.fragment import Visibility
from acmserve.context.session.history import adopt, append_answer, append_internal, end_turn
from acmserve.context.session.render import render
from acmserve.context.session.state import Author, SessionState
from acmserve.context.tools.search.exact import search_exact
from acmserve.errors import InvalidRequest
from tests.support.context.conversation import KEY, WORDS, assistant, contents, lines, state_of, user

LOG = lines(20)


def folded(state: SessionState, start: int, end: int) -> SessionState:
    cut = cut_messages(state, start, end, WORDS)
    return edits.fold(cut.state, cut.fragments[0].fragment_id, "sculptor", WORDS)


def answered(state: SessionState, answer: str, *internal: str) -> SessionState:
    state = append_internal(state, [{"role": "tool", "content": text, "tool_call_id": "c"} for text in internal])
    return end_turn(append_answer(state, assistant(answer)))


def test_without_an_edit_the_model_sees_the_clients_own_objects() -> None:
    messages = [user("a"), assistant(None), user([{"type": "text", "text": "b"}]), {"role": "tool", "content": 5}]
    rendered = render(state_of(*messages))
    assert len(rendered) == len(messages)
    assert all(shown is sent for shown, sent in zip(rendered, messages, strict=True))


def test_edits_stick_when_the_history_comes_again() -> None:
    history = [user(LOG), user("question")]
    state = folded(state_of(*history), 0, 1)
    adoption = adopt(state, [*history, assistant("answer"), user("next")])
    assert (adoption.num_known, adoption.dropped) == (2, ())
    assert contents(adoption.state)[0].startswith("[folded f9e375")
    assert contents(adoption.state)[1:] == ["question", "answer", "next"]
    assert adopt(adoption.state, [*history, assistant("answer"), user("next")]).state == adoption.state


@pytest.mark.parametrize(
    "resent",
    [
        {"role": "assistant", "content": "", "tool_calls": "CALLS"},
        {"role": "assistant", "content": None, "tool_calls": "CALLS", "refusal": None, "name": None, "audio": None},
        {"role": "assistant", "tool_calls": "CALLS", "reasoning_content": "hm", "function_call": None},
    ],
)
@pytest.mark.parametrize(
    "arguments", ['{"b": [1, 2], "a": "x"}', '{ "a":"x","b":[1,2] }', '{"a": "\\u0078", "b": [1, 2]}']
)
def test_empty_fields_and_spacing_of_arguments_do_not_count(resent: dict[str, Any], arguments: str) -> None:
    def calls(text: str) -> list[dict[str, Any]]:
        return [{"id": "c1", "type": "function", "function": {"name": "run", "arguments": text}}]

    first = {"role": "assistant", "content": None, "tool_calls": calls('{"a":"x","b":[1,2]}')}
    state = folded(state_of(user(LOG), first), 0, 1)
    again = {**resent, "tool_calls": calls(arguments)}
    adoption = adopt(state, [user(LOG), again])
    assert adoption.num_known == 2
    assert render(adoption.state)[1] is again
    assert contents(adoption.state)[0].startswith("[folded")


@pytest.mark.parametrize(
    "other",
    [
        {"role": "user", "content": "a", "tool_call_id": "c"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
        {"role": "user", "content": "a", "name": "bob"},
        {"role": "user", "content": "a", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{}"}}]},
    ],
)
def test_what_counts_makes_another_message(other: dict[str, Any]) -> None:
    assert digest_normal_form(other, KEY) != digest_normal_form(user("a"), KEY)


def test_the_identity_is_a_secret_of_the_session() -> None:
    assert digest_normal_form(user("a"), KEY) != digest_normal_form(user("a"), b"another key")
    assert SessionState().digest_key != SessionState().digest_key


def test_divergence_drops_what_it_replaces_and_tells_it() -> None:
    history = [user(LOG), user(lines(20, name="other")), user(lines(20, name="third"))]
    state = folded(folded(folded(state_of(*history), 0, 1), 1, 2), 2, 3)
    early, middle, late = (fragment.fragment_id for fragment in state.fragments)
    adoption = adopt(state, [history[0], user("something else"), history[2]])
    assert adoption.num_known == 2
    assert adoption.dropped == (DroppedEdit("fragment", middle, "its message is no longer in the history."),)
    assert [content.partition(":")[0] for content in contents(adoption.state)] == [
        f"[folded {early}",
        "something else",
        f"[folded {late}",
    ]


def test_a_fragment_that_reaches_behind_the_divergence_is_dropped_as_a_whole() -> None:
    state = folded(state_of(user(LOG), user(LOG)), 0, 2)
    adoption = adopt(state, [user(LOG), user("else")])
    assert [(edit.kind, edit.edit_id) for edit in adoption.dropped] == [("fragment", "f9e375")]
    assert contents(adoption.state) == [LOG, "else"]


def test_a_redaction_outlives_the_divergence_behind_it() -> None:
    """The fragment reaches behind the divergence. What the fragment erased in front of it stays erased, and says so."""
    history = [user(f"secret {LOG}"), user(LOG)]
    cut = cut_messages(state_of(*history), 0, 2, WORDS)
    state = edits.redact(cut.state, "f9e375")
    adoption = adopt(state, [history[0], user("else")])
    adoption.state.check_integrity()
    assert adoption.dropped == ()
    assert contents(adoption.state) == ["[redacted f9e375: 403 tokens removed]\n", "else"]
    assert adoption.state.fragment("f9e375").visibility is Visibility.REDACTED
    assert adopt(adoption.state, [user("new")]).state.fragments == ()


def test_the_client_resends_what_was_redacted_and_it_stays_redacted() -> None:
    history = [user(f"secret {LOG}")]
    state = edits.redact(cut_messages(state_of(*history), 0, 1, WORDS).state, "f9e375")
    adoption = adopt(state, [*history, user("next")])
    assert adoption.num_known == 1
    assert contents(adoption.state) == ["[redacted f9e375: 202 tokens removed]\n", "next"]
    assert "secret" not in repr(adoption.state)


def test_rewinding_drops_what_was_answered_and_its_internal_calls() -> None:
    state = answered(answered(state_of(user("q1")), "a1", "i1"), "a2", "i2")
    assert contents(state) == ["q1", "i1", "a1", "i2", "a2"]
    assert contents(adopt(state, [user("q1")]).state) == ["q1"]
    assert contents(adopt(state, [user("q1"), assistant("a1")]).state) == ["q1", "i1", "a1"]
    assert contents(adopt(state, [user("q1"), user("q2")]).state) == ["q1", "q2"]
    assert contents(adopt(state, []).state) == []


def test_internal_entries_stay_exactly_as_long_as_their_answer() -> None:
    state = answered(state_of(user("q1")), "a1", "i1", "i2")
    known = adopt(state, [user("q1"), assistant("a1"), user("q2")])
    assert known.num_known == 2
    assert contents(known.state) == ["q1", "i1", "i2", "a1", "q2"]
    assert [entry.origin for entry in known.state.entries[1:4]] == [Author.INTERNAL, Author.INTERNAL, Author.ANSWER]
    assert contents(adopt(state, [user("q1"), assistant("a1, edited"), user("q2")]).state) == ["q1", "a1, edited", "q2"]


def test_results_behind_an_answer_belong_to_it() -> None:
    """The model called our tools beside the client's: our results stand behind the answer that the client holds."""
    state = append_answer(state_of(user("q")), assistant("calls"))
    state = append_internal(state, [{"role": "tool", "content": "ours", "tool_call_id": "c"}])
    history = [user("q"), assistant("calls"), {"role": "tool", "content": "theirs", "tool_call_id": "d"}]
    assert contents(adopt(state, history).state) == ["q", "calls", "ours", "theirs"]


def test_a_turn_that_was_never_answered_leaves_nothing() -> None:
    """Also when nobody said that the turn before it was over: a history that comes in ends the turn."""
    state = append_answer(state_of(user("q1")), assistant("a1"))
    history = [user("q1"), assistant("a1"), user("q2")]
    state = append_internal(adopt(state, history).state, [{"role": "tool", "content": "lost", "tool_call_id": "c"}])
    assert contents(state) == ["q1", "a1", "q2", "lost"]
    assert contents(adopt(state, history).state) == ["q1", "a1", "q2"]
    assert contents(adopt(state, [*history, user("q3")]).state) == ["q1", "a1", "q2", "q3"]


def test_the_client_may_hold_another_answer_than_the_model_reads() -> None:
    state = append_answer(state_of(user("q")), assistant("a <think>x</think>"), client_view=assistant("a"))
    adoption = adopt(state, [user("q"), assistant("a"), user("next")])
    assert adoption.num_known == 2
    assert contents(adoption.state) == ["q", "a <think>x</think>", "next"]


def test_search_results_behind_a_divergence_are_forgotten() -> None:
    state = search_exact(state_of(user("word"), user("word")), "word", "user", 10, 50).state
    assert len(state.hits) == 2
    assert [hit.place.entry for hit in adopt(state, [user("word"), user("else")]).state.hits] == [0]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ("text", "must be an object, not str."),
        (None, "must be an object, not NoneType."),
        ({"role": "user", "content": "\ud800"}, "has half of a surrogate pair, which is no character."),
        ({"role": "user", "content": {1, 2}}, "is not JSON: Object of type set is not JSON serializable."),
        ({"role": "user", "content": 10**5000}, "is not JSON: Exceeds the limit"),
        ({"role": "user", "content": [{1: 2, "a": 3}]}, "is not JSON: '<' not supported"),
    ],
)
def test_what_is_no_message_is_refused_by_its_number(message: Any, reason: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        adopt(SessionState(), [user("fine"), message])
    assert error.value.field == "messages[1]"
    assert error.value.message.startswith(reason)


def test_a_message_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequest, match=r"messages\[0\]: is nested too deeply"):
        adopt(SessionState(), [user(deep)])
    while deep:
        deep = deep[0]


@pytest.mark.parametrize("arguments", ['{"x": "\\ud800"}', '{"x": "\\ud83d\\ude00"}', '{"x": "\\uDEAD \\\\ud800"}'])
def test_an_answer_may_spell_half_of_a_surrogate_pair(arguments: str) -> None:
    """Its call is text as good as any. The value of it is not, and an answer was lost when its stream had ended."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    message = {"role": "assistant", "content": "Look:", "tool_calls": [call]}
    state = end_turn(append_answer(state_of(user("a")), message, {**message, "content": "Look again:"}))
    result = {"role": "tool", "tool_call_id": "c", "content": "done"}
    adoption = adopt(state, [user("a"), {**message, "content": " Look again:"}, result])
    assert (adoption.num_known, adoption.dropped) == (2, ())
