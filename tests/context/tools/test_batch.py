"""Several edits in one request: one after the other, all or none, errors by their path."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acmserve.context.edits import cost, cut
from acmserve.context.edits.cost import effect_of
from acmserve.context.edits.find import editable_texts
from acmserve.context.session import render as rendering
from acmserve.context.session.render import evicted_entries, render
from acmserve.context.session.state import SessionState
from acmserve.context.tools import batch as batches
from acmserve.context.tools.batch import Edit, EditKind, run_batch
from acmserve.context.tools.run import ToolContext
from acmserve.context.transcript.message import Message, Part, texts
from acmserve.context.transcript.omissions import Omissions
from acmserve.errors import InvalidRequest, NotFound
from tests.support.context.conversation import Characters, assistant, bench, contents, lines, state_of, user

FOLD, RESTORE, SUMMARIZE, REDACT = EditKind.FOLD, EditKind.RESTORE, EditKind.SUMMARIZE, EditKind.REDACT


def four() -> SessionState:
    return state_of(*(user(lines(20, name=f"log{i}")) for i in range(4)))


def test_edits_see_the_edits_before_them() -> None:
    batch = [Edit(FOLD, messages=(0, 1)), Edit(FOLD, messages=(1, 3)), Edit(RESTORE, "f9e375"), Edit(REDACT, "f9e375")]
    done = run_batch(four(), batch, bench(), {})
    done.state.check_integrity()
    assert [(each.kind, each.fragment.fragment_id) for each in done.done] == [
        (FOLD, "f9e375"),
        (FOLD, "f3c6ea"),
        (RESTORE, "f9e375"),
        (REDACT, "f9e375"),
    ]
    assert [(each.num_tokens_before, each.num_tokens_after) for each in done.done] == [
        (201, 18),
        (402, 23),
        (18, 201),
        (201, 9),
    ]
    first, second, third, fourth = contents(done.state)
    assert first == "[redacted f9e375: 201 tokens removed]\n"
    assert second == '[folded f3c6ea: 402 tokens hidden; restore_fragment("f3c6ea") to read]\n'
    assert third == "[f3c6ea continued]\n"
    assert fourth == lines(20, name="log3")


@pytest.mark.parametrize(
    ("edit", "error", "told"),
    [
        (
            Edit(FOLD, "f00000"),
            NotFound,
            r"edits\[1\]\.fragment_id: there is no fragment 'f00000'\. Known fragments: f9e37",
        ),
        (
            Edit(FOLD, messages=(3, 9)),
            InvalidRequest,
            r"edits\[1\]\.messages: \[3, 9\) is not a range of the 4 messages",
        ),
        (Edit(RESTORE, messages=(1, 2)), InvalidRequest, r"edits\[1\]\.messages: a restore needs the id of a fragment"),
        (
            Edit(FOLD),
            InvalidRequest,
            r"edits\[1\]\.fragment_id: name a fragment or a range of messages, one of the two",
        ),
        (Edit(FOLD, "f9e375", (1, 2)), InvalidRequest, r"edits\[1\]\.fragment_id: name a fragment or a range"),
        (Edit(SUMMARIZE, "f9e375", focus=" "), InvalidRequest, r"edits\[1\]\.focus: is empty"),
    ],
)
def test_one_wrong_edit_stops_all_and_is_named(edit: Edit, error: type[InvalidRequest], told: str) -> None:
    state = four()
    with pytest.raises(error, match=told):
        run_batch(state, [Edit(FOLD, messages=(0, 1)), edit], bench(), {})
    assert state.fragments == ()


def test_summaries_are_asked_for_one_by_one_and_nothing_is_done_before() -> None:
    state = four()
    batch = [Edit(FOLD, messages=(0, 1)), Edit(SUMMARIZE, messages=(1, 2), focus="a"), Edit(SUMMARIZE, messages=(2, 3))]
    summaries: dict[tuple[str, str], str] = {}
    for fragment_id, focus, message in (("f3c6ea", "a", 1), ("fdaa5f", "main points", 2)):
        outcome = run_batch(state, batch, bench(), summaries)
        assert outcome.state is state
        assert outcome.needs is not None
        assert (outcome.needs.fragment_id, outcome.needs.focus) == (fragment_id, focus)
        assert outcome.needs.text == lines(20, name=f"log{message}")
        summaries[fragment_id, focus] = f"summary {message}"
    done = run_batch(state, batch, bench(), summaries)
    assert done.needs is None
    assert [text.splitlines()[-1] for text in contents(done.state)[1:3]] == ["summary 1", "summary 2"]


def test_an_edit_walks_what_it_changes_and_not_what_stands_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request may have a thousand edits of 65,536 messages. Each walked all messages behind it."""
    state = state_of(*(user(lines(3, name=f"log{number}")) for number in range(200)))
    walked = list[Message]()

    def counted(message: Message) -> list[tuple[Part, str]]:
        walked.append(message)
        return editable_texts(message)

    for module in (cost, cut, batches):
        monkeypatch.setattr(module, "editable_texts", counted, raising=False)
    folds = [Edit(FOLD, messages=(number, number + 1)) for number in range(20)]
    restores = [Edit(RESTORE, edit.fragment.fragment_id) for edit in run_batch(state, folds, bench(), {}).done]
    assert len(walked) <= 3 * len(folds)
    walked.clear()
    done = run_batch(state, [*folds, *restores], bench(), {})
    assert len(walked) <= 3 * len(folds)
    assert contents(done.state) == contents(state)


def test_what_an_eviction_took_out_is_read_once_for_all_edits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it walks the whole conversation."""
    state = state_of(*(message for at in range(20) for message in (user(lines(3, name=f"log{at}")), assistant("Yes."))))
    state = replace(state, omissions=Omissions(((1, 2), (5, 6))))
    read = list[SessionState]()

    def counted(state: SessionState) -> frozenset[int]:
        read.append(state)
        return evicted_entries(state)

    monkeypatch.setattr(rendering, "evicted_entries", counted)
    run_batch(state, [Edit(FOLD, messages=(at, at + 1)) for at in range(0, 20, 2)], bench(), {})
    assert len(read) == 1
    read.clear()
    batch = [Edit(REDACT, messages=(at, at + 1)) for at in range(0, 20, 2)]
    assert run_batch(state, batch, bench(), {}).state.omissions == state.omissions
    assert len(read) <= 2 * len(batch), "a redaction changes a message"


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=4, unique=True),
    st.sampled_from(["exact", "reuse"]),
    st.booleans(),
)
def test_a_turn_costs_what_stands_behind_the_first_change(messages: list[int], fidelity: str, redacts: bool) -> None:
    """Counted in characters, where every sum is exact. What is redacted is never moved."""
    before = four()
    batch = [Edit(FOLD, messages=(message, message + 1)) for message in messages]
    if redacts:
        batch[0] = replace(batch[0], kind=REDACT)
    after = run_batch(before, batch, ToolContext(Characters()), {}).state
    turn_cost = effect_of(before, after, fidelity, Characters()).cost
    behind = sum(len(text) for message in render(after)[min(messages) :] for _, text in texts(message))
    markers = sum(len(shown) for fragment in after.fragments for shown in fragment.shown or ())
    assert turn_cost.num_computed + turn_cost.num_moved == behind
    assert turn_cost.num_computed == (behind if fidelity == "exact" or redacts else markers)
    assert effect_of(after, after, fidelity, Characters()).cost.num_computed == 0
