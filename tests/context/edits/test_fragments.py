"""What a user sees of cutting, folding, summarizing and restoring: markers to the byte, refusals with their way out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from acmserve.context.edits import fragments as edits
from acmserve.context.edits.cut import cut_between, cut_messages
from acmserve.context.session import marker
from acmserve.context.session.going_on import go_on
from acmserve.context.session.history import adopt, append_answer, append_internal, end_turn
from acmserve.context.session.state import Author, SessionState
from acmserve.context.storage.codecs.state import state_value
from acmserve.context.tools.run import SummaryWanted
from acmserve.context.transcript.message import Place
from acmserve.context.transcript.omissions import MessageOmissions, Omissions
from acmserve.errors import Conflict, InvalidRequest, NotFound
from tests.support.context.conversation import (
    WORDS,
    assistant,
    call,
    contents,
    cut,
    done,
    lines,
    refusal,
    state_of,
    user,
)

LOG = lines(40)
FIRST = "f9e375"
"""The first id that a session gives."""


def whole_log() -> SessionState:
    """Three messages. The second is a log of 401 tokens and, as a whole, fragment `FIRST`."""
    state = state_of(user("Read this:\n"), user(LOG), user("What is it?"))
    return cut_messages(state, 1, 2, WORDS).state


def test_folded_text_leaves_its_marker_and_its_line_break() -> None:
    state = done(call(whole_log(), "fold_fragment", fragment_id=FIRST))
    assert contents(state) == [
        "Read this:\n",
        '[folded f9e375: 401 tokens hidden; restore_fragment("f9e375") to read]\n',
        "What is it?",
    ]


def test_markers_to_the_byte() -> None:
    """They are part of the cached prefix: a changed byte recomputes every conversation that has a fold."""
    assert marker.folded("f1a2b3", 4812, 2, "sculptor") == (
        '[folded f1a2b3: 4,812 tokens hidden; restore_fragment("f1a2b3") to read]',
        "[f1a2b3 continued]",
    )
    assert marker.folded("f1a2b3", 4812, 1, "sculptor-v1") == (
        '[folded f1a2b3: 4,812 tokens hidden; expand_fragment("f1a2b3") to read]',
    )
    summary, rest = marker.summarized("f1a2b3", 4812, 2, "sculptor", "key decisions", "They agreed.")
    assert summary == (
        '[summary of f1a2b3, focus "key decisions": 4,812 tokens hidden; restore_fragment("f1a2b3") to read]\n'
        "They agreed."
    )
    assert rest == "[f1a2b3 continued]"
    assert marker.summarized("f1a2b3", 1, 1, "sculptor-v1", "x", "y")[0] == (
        '[summary of f1a2b3, focus "x": 1 tokens hidden; revert_summary("f1a2b3") to read]\ny'
    )
    assert marker.redacted("f1a2b3", 4812, 2) == ("[redacted f1a2b3: 4,812 tokens removed]", "[f1a2b3 continued]")


def test_a_fragment_spans_the_messages_of_its_role_and_no_other() -> None:
    state = state_of(user(f"begin {LOG}"), assistant("I see."), user(f"{LOG}finish. And now?"))
    state, [fragment_id] = cut(state, "begin", "finish.")
    fragment = state.fragment(fragment_id)
    assert [piece.place for piece in fragment.pieces] == [Place(0), Place(2)]
    state = done(call(state, "fold_fragment", fragment_id=fragment_id))
    assert contents(state) == [
        f'[folded {FIRST}: 804 tokens hidden; restore_fragment("{FIRST}") to read]\n',
        "I see.",
        f"[{FIRST} continued] And now?",
    ]


def test_text_parts_are_cut_and_everything_else_in_a_list_stays() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    state = state_of(user([{"type": "text", "text": f"look {LOG}"}, image, "bare words here"]))
    state, [fragment_id] = cut(state, "look", "words")
    state = done(call(state, "fold_fragment", fragment_id=fragment_id))
    [content] = contents(state)
    assert content[0]["text"].startswith("[folded f9e375: 404 tokens hidden;")
    assert content[1] is image
    assert content[2] == "[f9e375 continued] here"


def test_markers_are_both_included_and_the_first_visible_start_counts() -> None:
    state = state_of(user("a START b END c START d END e"))
    outcome = call(state, "fragment_context", start_marker="START", end_marker="END", num_fragments=1)
    [fragment_id] = outcome.fragment_ids
    assert outcome.state.fragment_text(outcome.state.fragment(fragment_id)) == "START b END"
    assert outcome.result.splitlines()[0] == (
        "Made 1 fragment, nothing is hidden yet. The start marker occurs 2 times; the first was taken."
    )


def test_a_start_marker_in_folded_text_is_passed_over() -> None:
    state = cut_messages(state_of(user(LOG), user(f"see line 3 and {LOG}")), 0, 1, WORDS).state
    state = edits.fold(state, FIRST, "sculptor", WORDS)
    state, [fragment_id] = cut(state, "line 3 and", "line 5")
    assert state.fragment(fragment_id).pieces[0].place == Place(1)


def test_fragments_of_one_text_are_folded_in_any_order() -> None:
    state, [late] = cut(state_of(user(f"a\n{LOG}b\n{LOG}c")), "b\n", "c")
    state, [early] = cut(state, "a\n", "line 39 word")
    for fragment_id in (late, early):
        state = done(call(state, "fold_fragment", fragment_id=fragment_id))
    first, second = contents(state)[0].split("\n")
    assert first == f'[folded {early}: 394 tokens hidden; restore_fragment("{early}") to read]{" word" * 6} end'
    assert second == f'[folded {late}: 402 tokens hidden; restore_fragment("{late}") to read]'


def test_the_same_words_may_begin_and_end_a_fragment() -> None:
    state, [alone] = cut(state_of(user("one two three")), "two", "two")
    assert state.fragment_text(state.fragment(alone)) == "two"
    state, [between] = cut(state_of(user("x --- a --- b --- y")), "---", "---")
    assert state.fragment_text(state.fragment(between)) == "--- a ---"
    state = edits.fold(cut_messages(state_of(user(LOG), user("line 7")), 0, 1, WORDS).state, FIRST, "sculptor", WORDS)
    state, [behind] = cut(state, "line 7", "line 7")
    assert state.fragment_text(state.fragment(behind)) == "line 7"


def test_all_means_every_role_but_the_instructions() -> None:
    messages = [
        {"role": "system", "content": "MARK rules"},
        {"role": "tool", "content": "MARK result", "tool_call_id": "x"},
    ]
    state, [fragment_id] = cut(state_of(*messages), "MARK", "MARK", role="all")
    assert state.fragment(fragment_id).pieces[0].place == Place(1)
    told = call(state, "fragment_context", start_marker="MARK", end_marker="MARK", role="user")
    assert "no message of role 'user' contains it. A message of role 'tool' does: use role 'all'." in refusal(
        state, told
    )


def test_text_of_a_tool_result_is_found_without_naming_a_role() -> None:
    """Users' messages are looked into first, as the schema says, and the result names whose text it was."""
    result = {"role": "tool", "content": f"{LOG}MARK", "tool_call_id": "x"}
    state = state_of(user("MARK this"), result)
    made = call(state, "fragment_context", start_marker="line 3 ", end_marker="MARK", num_fragments=1)
    assert made.result.startswith("Made 1 fragment in messages of role 'tool', nothing is hidden yet.")
    assert done(made).fragments[0].pieces[0].place == Place(1)
    both = call(state, "fragment_context", start_marker="MARK", end_marker="this", num_fragments=1)
    assert both.result.startswith("Made 1 fragment, nothing is hidden yet.")


def test_a_fold_that_saves_nothing_is_refused_with_the_numbers() -> None:
    state, [fragment_id] = cut(state_of(user("just a few words")), "just", "words")
    assert refusal(state, call(state, "fold_fragment", fragment_id=fragment_id)) == (
        f"Error: fragment_id: folding {fragment_id} would save nothing: its text shows 4 tokens, "
        "what would stand there has 17. Leave it visible, or fragment a longer text around it."
    )
    long_winded = call(whole_log(), "summarize_fragment", fragment_id=FIRST, focus="all", supplied="word " * 500)
    assert long_winded.error is not None
    assert "summarizing f9e375 would save nothing: its text shows 401 tokens" in long_winded.result


def test_summaries_are_kept_by_focus_and_cost_nothing_again() -> None:
    state = whole_log()
    wanted = call(state, "summarize_fragment", fragment_id=FIRST, focus="names")
    assert wanted.state is state
    assert isinstance(wanted.needs, SummaryWanted)
    assert (wanted.needs.text, wanted.needs.focus, wanted.needs.num_tokens) == (LOG, "names", 401)
    state = done(call(state, "summarize_fragment", fragment_id=FIRST, focus="names", supplied="  No names.\n"))
    summary = '[summary of f9e375, focus "names": 401 tokens hidden; restore_fragment("f9e375") to read]\nNo names.\n'
    assert contents(state)[1] == summary
    state = done(call(state, "summarize_fragment", fragment_id=FIRST, focus="numbers", supplied="40 lines."))
    state = done(call(state, "fold_fragment", fragment_id=FIRST))
    state = done(call(state, "restore_fragment", fragment_id=FIRST))
    assert contents(state)[1] == LOG
    assert contents(done(call(state, "summarize_fragment", fragment_id=FIRST, focus="names")))[1] == summary


def test_an_empty_summary_changes_nothing() -> None:
    state = whole_log()
    outcome = call(state, "summarize_fragment", fragment_id=FIRST, focus="names", supplied=" \n")
    assert "the summary of f9e375 came out empty; nothing was changed." in refusal(state, outcome)


@pytest.mark.parametrize("focus", ['the "key"', "two\nlines", "x" * 201, "a\u2028b", "nul\x00"])
def test_a_focus_is_one_short_line(focus: str) -> None:
    state = whole_log()
    outcome = call(state, "summarize_fragment", fragment_id=FIRST, focus=focus, supplied="s")
    assert refusal(state, outcome) == (
        "Error: focus: must be one line of at most 200 characters without double quotes."
    )


def test_folding_a_summary_and_restoring_it_shows_the_original() -> None:
    state = whole_log()
    state = done(call(state, "summarize_fragment", fragment_id=FIRST, focus="x", supplied="s"))
    state = done(call(state, "fold_fragment", fragment_id=FIRST))
    assert contents(state)[1].startswith("[folded ")
    assert contents(done(call(state, "restore_fragment", fragment_id=FIRST)))[1] == LOG


def test_fold_of_a_folded_fragment_says_how_to_read_it() -> None:
    state = done(call(whole_log(), "fold_fragment", fragment_id=FIRST))
    assert refusal(state, call(state, "fold_fragment", fragment_id=FIRST)) == (
        'Error: fragment_id: f9e375 is folded already. Call restore_fragment("f9e375") to read it.'
    )
    v1 = call(state, "fold_fragment", suite="sculptor-v1", fragment_id=FIRST)
    assert 'Call expand_fragment("f9e375") to read it.' in refusal(state, v1)


def test_a_shown_summary_is_not_made_twice() -> None:
    state = done(call(whole_log(), "summarize_fragment", fragment_id=FIRST, focus="x", supplied="s"))
    again = call(state, "summarize_fragment", fragment_id=FIRST, focus="x")
    assert refusal(state, again) == ('Error: fragment_id: f9e375 is shown as a summary with the focus "x" already.')


def test_restore_of_visible_text_is_refused() -> None:
    state = whole_log()
    assert refusal(state, call(state, "restore_fragment", fragment_id=FIRST)) == (
        "Error: fragment_id: f9e375 is visible already; nothing to restore."
    )


def test_v1_tools_point_at_each_other() -> None:
    state = done(call(whole_log(), "fold_fragment", suite="sculptor-v1", fragment_id=FIRST))
    outcome = call(state, "revert_summary", suite="sculptor-v1", fragment_id=FIRST)
    assert refusal(state, outcome) == (
        "Error: fragment_id: f9e375 is folded, not summarized. Call expand_fragment instead."
    )
    state = done(call(state, "summary_fragment", suite="sculptor-v1", fragment_id=FIRST, focus="x", supplied="s"))
    outcome = call(state, "expand_fragment", suite="sculptor-v1", fragment_id=FIRST)
    assert "f9e375 is summarized, not folded. Call revert_summary instead." in refusal(state, outcome)
    assert contents(done(call(state, "revert_summary", suite="sculptor-v1", fragment_id=FIRST)))[1] == LOG


def test_unknown_ids_name_those_that_exist() -> None:
    state = whole_log()
    assert refusal(state, call(state, "fold_fragment", fragment_id="f00000")) == (
        "Error: fragment_id: there is no fragment 'f00000'. Known fragments: f9e375."
    )
    empty = state_of(user("x"))
    assert refusal(empty, call(empty, "fold_fragment", fragment_id="f00000")) == (
        "Error: fragment_id: there is no fragment 'f00000'. There are no fragments yet; call fragment_context first."
    )
    assert refusal(empty, call(empty, "get_search_detail", search_id="s00000")) == (
        "Error: search_id: there is no search result 's00000'. Call search_context and use an id it lists."
    )


def test_markers_that_are_not_found_say_where_to_look() -> None:
    state = state_of(user("alpha beta"), assistant("gamma"))
    assert refusal(state, call(state, "fragment_context", start_marker="gamma", end_marker="beta", role="user")) == (
        "Error: start_marker: no message of role 'user' contains it. "
        "A message of role 'assistant' does: use role 'all'."
    )
    assert refusal(state, call(state, "fragment_context", start_marker="beta", end_marker="alpha")) == (
        "Error: end_marker: no message of role 'all' contains it behind the start marker. "
        "It stands before it: swap the two."
    )
    assert refusal(state, call(state, "fragment_context", start_marker=" \n", end_marker="beta")) == (
        "Error: start_marker: is empty. Give the first (or last) words of the text to fragment."
    )


def test_a_start_marker_in_hidden_text_only_says_what_to_restore() -> None:
    state = done(call(whole_log(), "fold_fragment", fragment_id=FIRST))
    outcome = call(state, "fragment_context", start_marker="line 5", end_marker="line 9")
    assert refusal(state, outcome) == (
        "Error: start_marker: stands only in hidden fragment f9e375. Restore f9e375 first."
    )


def test_restore_context_shows_everything_and_voids_the_ids() -> None:
    state = done(call(whole_log(), "fold_fragment", fragment_id=FIRST))
    outcome = call(state, "restore_context", suite="sculptor-v1")
    assert outcome.changed
    assert outcome.result == "Forgot 1 fragment, the old ids are void; f9e375 visible again."
    assert contents(done(outcome))[1] == LOG
    again = call(outcome.state, "restore_context", suite="sculptor-v1")
    assert not again.changed
    assert again.result == "There are no fragments; nothing was hidden."


@pytest.mark.parametrize(("start", "end"), [(-1, 1), (0, 0), (2, 1), (0, 4), (3, 4)])
def test_a_range_of_messages_must_exist(start: int, end: int) -> None:
    with pytest.raises(InvalidRequest, match=r"messages: \[.*\) is not a range of the 3 messages of this session"):
        cut_messages(whole_log(), start, end, WORDS)


def test_messages_without_text_cannot_be_hidden() -> None:
    state = state_of(user(None), user([{"type": "image_url", "image_url": {"url": "data:,"}}]))
    with pytest.raises(InvalidRequest, match=r"messages \[0, 2\) have no text that could be hidden"):
        cut_messages(state, 0, 2, WORDS)


def test_a_range_may_hold_fragments_and_never_a_part_of_one() -> None:
    whole = cut_messages(whole_log(), 0, 3, WORDS)
    whole.state.check_integrity()
    assert len(whole.fragments[0].pieces) == 3
    assert cut_messages(whole.state, 1, 2, WORDS).fragments[0].fragment_id == FIRST
    spanning = cut_messages(state_of(user("a"), user(LOG), user("b")), 1, 3, WORDS).state
    refused = r"messages: \[0, 2\) has a part of fragment f9e375 only\. Name the fragment, or messages \[0, 3\)\."
    with pytest.raises(Conflict, match=refused):
        cut_messages(spanning, 0, 2, WORDS)
    assert cut_messages(spanning, 0, 3, WORDS).fragments


def test_redaction_erases_the_text_and_keeps_its_neighbours() -> None:
    state = state_of(user(f"keep\x00this {LOG}and this"))
    state, [fragment_id] = cut(state, "line 0", "line 39 word")
    state, [behind] = cut(state, "and", "this")
    state = edits.redact(state, fragment_id)
    state.check_integrity()
    assert "line 5" not in repr(state)
    assert contents(state)[0].startswith(f"keep\x00this [redacted {fragment_id}: ")
    assert state.fragment_text(state.fragment(behind)) == "and this"
    gone = f"fragment_id: {fragment_id} was redacted; its text is gone and cannot be brought back."
    for name in ("fold_fragment", "restore_fragment"):
        assert refusal(state, call(state, name, fragment_id=fragment_id)) == f"Error: {gone}"
    with pytest.raises(Conflict, match="was redacted"):
        edits.redact(state, fragment_id)
    assert edits.restore_all(state).fragment(fragment_id)


def test_a_redaction_reaches_results_of_searches_and_what_goes_on_behind_an_answer() -> None:
    """The model has searched for it on the server. Then a client tells it again behind the answer."""
    secret = "the code of the door is four seven one one"
    state, [fragment_id] = cut(state_of(user(f"{lines(3)}\n{secret}\n{lines(3)}")), "the code", "one one")
    found = call(state, "search_context", query="code of the door")
    called = {"id": "c1", "type": "function", "function": {"name": "search_context", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": found.result}
    state = append_internal(found.state, [{"role": "assistant", "content": None, "tool_calls": [called]}, result])
    state = end_turn(append_answer(state, assistant("I know .") | {"response_id": "r1"}))
    assert str(state.entries).count(secret) == 2, "the control"
    state = edits.redact(state, fragment_id)
    state.check_integrity()
    assert secret not in str(state.entries)
    assert secret not in str(contents(state))
    assert "\x00" not in str(contents(state))
    again = go_on(state, "r1", [user(f"Again : {secret}")]).state
    again.check_integrity()
    assert secret not in str(again.entries)
    assert "\x00" not in str(contents(again))


def searched_twice() -> tuple[SessionState, str]:
    """A client's message, a search that quotes it, and the same text in a message behind the search."""
    secret = "the code of the door is four seven one one"
    state = state_of(user(f"{lines(3)}\n{secret}\n{lines(3)}"))
    found = call(state, "search_context", query="code of the door")
    called = {"id": "c1", "type": "function", "function": {"name": "search_context", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "c1", "content": f"{found.result}\n{lines(40)}"}
    state = append_internal(found.state, [{"role": "assistant", "content": None, "tool_calls": [called]}, result])
    return end_turn(append_answer(state, assistant("I know ."))), secret


def test_a_redaction_reaches_a_summary_of_a_conversation_that_quotes_it_in_front() -> None:
    """The client has taken the text out of the first message. It comes again behind what the summary covers."""
    state, secret = searched_twice()
    state = adopt(state, [user(lines(7)), assistant("I know ."), user("Go on ."), assistant("Yes .")]).state
    kept = MessageOmissions(True, True, frozenset({0}), summary=f"It says that {secret}.", summary_end=3)
    state = replace(state, omissions=Omissions(((1, 3),), {1: kept}))
    state = adopt(state, [*(e.message for e in state.entries if e.origin is not Author.INTERNAL), user(secret)]).state
    whole = cut_messages(state, len(state.entries) - 1, len(state.entries), WORDS)
    assert str(state_value(state)).count(secret) == 3, "the control"
    state = edits.redact(whole.state, whole.fragments[0].fragment_id)
    state.check_integrity()
    assert secret not in str(state_value(state))


def test_no_marker_is_found_in_what_was_redacted() -> None:
    state = edits.redact(whole_log(), FIRST)
    for words in ("line 5", "\x00"):
        with pytest.raises(NotFound, match="start_marker: no message of role 'user' contains it"):
            cut_between(state, words, words, 1, "user", WORDS)


def test_ids_come_back_after_a_million_and_never_while_in_use() -> None:
    state = SessionState()
    ids = set()
    for _ in range(1000):
        made, state = state.new_id("f")
        ids.add(made)
        assert len(made) == 6
    assert len(ids) == 1000
    later = replace(whole_log(), num_ids=16**5)
    made, later = later.new_id("f")
    assert made != FIRST
    assert later.num_ids == 16**5 + 2
