"""Arguments of calls as texts that a model edits: found, cut, folded and restored, redacted, carried and counted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cost import ShownTexts, effect_of
from acmserve.context.edits.cut import cut_between, cut_messages
from acmserve.context.edits.find import editable_texts
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.session.carrying.carry_over import EMPTIED
from acmserve.context.session.carrying.record import CHANGED
from acmserve.context.session.fragment import Fragment, Piece
from acmserve.context.session.history import Adoption, adopt
from acmserve.context.session.render import render
from acmserve.context.session.state import SessionState
from acmserve.context.storage.codecs.rows import pack, unpack
from acmserve.context.storage.codecs.state import state_from, state_value
from acmserve.context.tools.search.semantic import passages
from acmserve.context.transcript.call_arguments import MIN_ARGUMENT_CHARS, ArgumentPart
from acmserve.context.transcript.message import Message, Place, text_at
from acmserve.context.transcript.omissions import MessageOmissions, Omissions
from acmserve.errors import Conflict, NotFound
from tests.support.context.conversation import WORDS, Characters, call, done, lines, state_of, user

BODY = lines(30, name='print("é")')
SECRET = "The harbour's safe opens with 4711-0815 on every second Monday.\n"
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "written"}


def writes(arguments: object, name: str = "write_file", content: str | None = None) -> dict[str, Any]:
    """A message that calls a tool. Arguments that are no text are spelled as JSON."""
    spelled = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": name, "arguments": spelled}}],
    }


def written(body: str = BODY, **more: Any) -> list[Message]:
    return [user("Write it."), writes({"path": "a.py", **more, "content": body}), RESULT, user("Go on.")]


def arguments_of(message: Message) -> Any:
    return json.loads(message["tool_calls"][0]["function"]["arguments"])


def cut_out(state: SessionState, start: str, end: str) -> tuple[SessionState, str]:
    made = cut_between(state, start, end, 1, "assistant", WORDS)
    return made.state, made.fragments[0].fragment_id


def fragment_of(state: SessionState) -> Fragment:
    [fragment] = state.fragments
    return fragment


def resent(state: SessionState, messages: Sequence[Message]) -> Adoption:
    adoption = adopt(state, messages)
    adoption.state.check_integrity()
    assert adopt(adoption.state, messages).state == adoption.state
    return adoption


def test_text_in_arguments_is_found_and_named() -> None:
    state = state_of(*written())
    outcome = call(state, "search_context", query='print("é") 7 word', context_size=50)
    assert 's9e375 (message 1, assistant, argument content of write_file): ...int("é") 6 word' in outcome.result
    assert call(state, "search_context", query="a.py", role="all").result.startswith("No match")
    hit = state.hits or done(outcome).hits
    assert text_at(state.entries[1].message, hit[0].place.part)[hit[0].start : hit[0].end] == 'print("é") 7 word'
    assert any(passage.piece.place.part == ArgumentPart(0, ("content",)) for passage in passages(state, "all"))
    assert not any(passage.piece.place.entry == 1 for passage in passages(state, "user"))


def test_a_fold_in_arguments_by_the_tools_and_back() -> None:
    state = state_of(*written())
    made = call(state, "fragment_context", start_marker='print("é") 3 ', end_marker='print("é") 20', num_fragments=1)
    assert made.result.startswith("Made 1 fragment in messages of role 'assistant'")
    assert "tokens in argument content of write_file, from " in made.result
    [name] = made.fragment_ids
    shown = done(call(done(made), "fold_fragment", fragment_id=name))
    read = arguments_of(render(shown)[1])
    assert list(read) == ["path", "content"]
    assert read["path"] == "a.py"
    marker = fragment_of(shown).shown
    assert marker is not None
    start, end = BODY.index('print("é") 3 '), BODY.index('print("é") 20') + len('print("é") 20')
    assert read["content"] == BODY[:start] + marker[0] + BODY[end:]
    assert f"in folded {name}" in call(shown, "search_context", query='print("é") 9 ').result
    back = done(call(shown, "restore_fragment", fragment_id=name))
    assert render(back)[1] is state.entries[1].message


def test_short_strings_and_calls_of_context_tools_are_no_texts() -> None:
    long = "w" * MIN_ARGUMENT_CHARS
    for message in (writes({"a": long[1:]}), writes({"query": long}, "search_context")):
        assert editable_texts(message) == []
        with pytest.raises(NotFound):
            cut_between(state_of(user("x"), message), "www", "www", 1, "all", WORDS)
    assert [text for _, text in editable_texts(writes({"a": long}))] == [long]


@pytest.mark.parametrize("raw", ['{"a": "%s", "a": "other"}', '["%s"]', '{"a": "%s'])
def test_what_is_no_object_is_searched_and_not_cut(raw: str) -> None:
    state = state_of(user("x"), writes(raw % ("needle " * 20)))
    found = call(state, "search_context", query="needle")
    assert "20 matches" in found.result or "The first 10 of 20 matches" in found.result
    assert "assistant, arguments of write_file" in found.result
    with pytest.raises(Conflict, match="no JSON object"):
        cut_between(state, "needle", "needle", 1, "all", WORDS)
    assert done(found).hits == adopt(done(found), [entry.message for entry in state.entries]).state.hits


NESTED = st.recursive(
    st.integers(0, 3).map(lambda n: f'"\\{n}\x00é\U0001f600 ' * 16) | st.sampled_from([1.5, None, "short", True]),
    lambda inner: st.lists(inner, min_size=1, max_size=3) | st.dictionaries(st.text("ab~/\n", max_size=2), inner),
    max_leaves=6,
)


@settings(max_examples=60)
@given(given=st.dictionaries(st.sampled_from(["a", "é", ""]), NESTED, min_size=1), spaced=st.booleans(), data=st.data())
def test_any_arguments_are_folded_restored_redacted_and_known_again(
    given: dict[str, Any], spaced: bool, data: st.DataObject
) -> None:
    raw = json.dumps(given, ensure_ascii=spaced, indent=1 if spaced else None)
    respelled = json.dumps(dict(reversed(given.items())), ensure_ascii=not spaced)
    messages = [user("Go."), writes(raw, content="Look."), RESULT]
    state = state_of(*messages)
    places = [Place(1, part) for part, text in editable_texts(messages[1]) if isinstance(part, ArgumentPart)]
    if not places:
        return
    pieces = []
    for place in sorted(data.draw(st.sets(st.sampled_from(places), min_size=1), "places")):
        start = data.draw(st.integers(0, 20), "start")
        pieces.append(Piece(place, start, data.draw(st.integers(start + 1, len(state.text_at(place))), "end")))
    fragment = Fragment("f00001", "assistant", tuple(pieces), 9)
    state = replace(state, fragments=(fragment,))
    folded = state.replace_fragment(edits.folded(state, fragment, "sculptor"))
    folded.check_integrity()
    read = arguments_of(render(folded)[1])
    assert shape(read) == shape(given)
    assert render(edits.restore(folded, "f00001"))[1] is messages[1]
    moved = resent(folded, [user("Go."), user("New."), writes(respelled, content="Look."), RESULT])
    assert not moved.dropped
    assert arguments_of(render(moved.state)[2]) == read
    assert render(edits.restore(moved.state, "f00001"))[2] == writes(respelled, content="Look.")

    gone = edits.redact(folded, "f00001")
    gone.check_integrity()
    assert state_from(unpack(pack(state_value(gone))), "test") == gone
    assert shape(arguments_of(gone.entries[1].message)) == shape(given)
    for piece in pieces:
        assert set(gone.piece_text(piece)) == {"\x7f"}
    again = resent(gone, [user("Go."), writes(respelled, content="Look."), RESULT, user("On.")])
    assert not again.dropped
    assert again.state.entries[1].message == gone.entries[1].message


def shape(value: Any) -> Any:
    """A JSON value without its long strings."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return "" if isinstance(value, str) and value != "short" else value


def test_an_edit_follows_its_text_or_is_dropped_with_a_reason() -> None:
    first, message, *rest = written()
    renamed = writes({"path": "a.py", "text": BODY}, content="It is said here, in many words.")
    state_said, name = cut_out(state_of(first, {**message, "content": renamed["content"]}, *rest), "end", "29")
    kept = resent(edits.fold(state_said, name, "sculptor", WORDS), [first, renamed, *rest])
    assert not kept.dropped
    assert "[folded" in arguments_of(render(kept.state)[1])["text"]
    other = writes({"path": "a.py", "content": BODY[1:]}, content=renamed["content"])
    lost = resent(edits.fold(state_said, name, "sculptor", WORDS), [first, other, *rest])
    assert [(edit.kind, edit.edit_id, edit.reason) for edit in lost.dropped] == [("fragment", name, CHANGED)]
    assert render(lost.state)[1] == other


def redacted(**more: Any) -> SessionState:
    state, name = cut_out(state_of(*written(BODY + SECRET + BODY, **more)), "The harbour", "Monday.\n")
    return edits.redact(state, name)


SAID = json.dumps({"path": "a.py", "content": BODY + SECRET + BODY}, ensure_ascii=False)


@pytest.mark.parametrize(
    ("arguments", "is_emptied"),
    [
        (SAID, False),
        (SAID.replace("a.py", "b.py"), False),
        (SAID.replace("a.py", SECRET[:-1]), False),
        (SAID.replace("0", "\\u0030").replace("T", "\\u0054"), False),
        (json.dumps({"path": "a.py", SECRET: "x"}), True),
        (SAID[:-2], True),
        (SAID.replace("T", "\\u0054").replace(" ", "\\u0020")[:-2], True),
        (SAID[:-1] + ', "path": "b.py"}', True),
        (f"[{SAID}]", True),
    ],
)
def test_a_redacted_text_never_comes_back_in_arguments(arguments: str, is_emptied: bool) -> None:
    state = redacted()
    first, _, *rest = written()
    for messages in (
        [first, writes(arguments), *rest],
        [first, writes(arguments, content="New words."), *rest],
        [first, writes(SAID), *rest, writes(arguments)],
        [user("Another one."), writes({"x": 1}), writes(arguments)],
    ):
        adoption = resent(state, messages)
        for kept in (repr(adoption.state), json.dumps(render(adoption.state)), str(state_value(adoption.state))):
            assert "4711" not in kept
            assert "\\u0030815" not in kept
            assert "second Monday" not in kept
        told = [edit for edit in adoption.dropped if edit.reason == EMPTIED]
        assert bool(told) is is_emptied
        assert all(json.loads(c["function"]["arguments"]) is not None for m in render(adoption.state) for c in calls(m))


def test_a_redacted_text_never_comes_back_in_a_list_of_arguments() -> None:
    """No client should send one. vLLM hands it to the template as it is."""
    first, _, *rest = written()
    listed = writes("{}")
    listed["tool_calls"][0]["function"]["arguments"] = [json.loads(SAID)]
    adoption = resent(redacted(), [first, listed, *rest])
    assert "second Monday" not in repr(adoption.state)
    assert EMPTIED in [edit.reason for edit in adoption.dropped]


def calls(message: Message) -> Sequence[Any]:
    found: Sequence[Any] = message.get("tool_calls") or ()
    return found


def test_what_was_redacted_in_a_content_is_cut_out_of_arguments_and_of_nothing_else() -> None:
    state = state_of(user("Note: " + SECRET), user("Go on."))
    cut = cut_between(state, "The harbour", "Monday.", 1, "user", WORDS)
    state = edits.redact(cut.state, cut.fragments[0].fragment_id)
    adoption = resent(state, [user("Note: " + SECRET), user("Go on."), writes({"a": "Say: " + SECRET, "b": [BODY]})])
    assert not adoption.dropped
    read = arguments_of(render(adoption.state)[2])
    assert read == {"a": "Say: [f9e375 continued]\n", "b": [BODY]}
    control = adopt(state_of(), [writes({"a": "Say: " + SECRET})])
    assert "4711" in repr(control.state)


def test_arguments_count_as_the_template_writes_them() -> None:
    state, name = cut_out(state_of(*written()), 'print("é") 3 ', 'print("é") 20')
    folded = state.replace_fragment(edits.folded(state, fragment_of(state), "sculptor"))
    effect = effect_of(state, folded, "exact", Characters())
    before, after = (shown_text(one) for one in (state, folded))
    assert effect.num_saved == len(before) - len(after)
    shown = ShownTexts(state, Characters())
    whole = Piece(Place(1, ArgumentPart(0, ("content",))), 0, len(BODY))
    assert shown.num_tokens(whole) == len(json.dumps(BODY, ensure_ascii=False)) - 2
    meter = ContextMeter(Characters())
    meter.follow(state)
    num_before = meter.num_tokens
    meter.follow(folded)
    meter.check_integrity()
    assert num_before - meter.num_tokens == len(raw_of(state)) - len(raw_of(folded))
    assert name in raw_of(folded)


def raw_of(state: SessionState) -> str:
    raw: str = render(state)[1]["tool_calls"][0]["function"]["arguments"]
    return raw


def shown_text(state: SessionState) -> str:
    return json.dumps(arguments_of(render(state)[1]), ensure_ascii=False)


@pytest.mark.parametrize(
    "omissions",
    [
        Omissions(entries={1: MessageOmissions(inputs=frozenset({0}))}),
        Omissions(entries={1: MessageOmissions(calls=frozenset({0}))}),
        Omissions(((1, 3),)),
    ],
)
def test_what_an_eviction_took_out_is_said_and_costs_nothing(omissions: Omissions) -> None:
    state, name = cut_out(state_of(*written()), 'print("é") 3 ', 'print("é") 20')
    evicted = replace(state, omissions=omissions)
    assert "write_file, evicted)" in call(evicted, "search_context", query='print("é") 9 ').result
    fragment = evicted.fragment(name)
    assert ShownTexts(evicted, WORDS).num_tokens(fragment.pieces[0]) == 0
    assert ShownTexts(state, WORDS).num_tokens(fragment.pieces[0]) > 100
    folded = evicted.replace_fragment(edits.folded(evicted, fragment, "sculptor"))
    assert effect_of(evicted, folded, "exact", WORDS).num_saved == 0


def test_a_range_of_messages_has_their_arguments() -> None:
    state = state_of(*written())
    made = cut_messages(state, 1, 3, WORDS)
    assert [piece.place for piece in made.fragments[0].pieces] == [Place(1, ArgumentPart(0, ("content",))), Place(2)]
    folded = edits.fold(made.state, made.fragments[0].fragment_id, "sculptor", WORDS)
    assert arguments_of(render(folded)[1])["content"].startswith("[folded")
