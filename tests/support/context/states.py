"""Session states for the tests of store and archive, random ones for hypothesis and plain ones. Also a clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from acmserve.context.alignment.redacted_text import RedactedText, seal_text
from acmserve.context.session.budget import Budget
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.history import adopt, append_answer, append_internal, end_turn
from acmserve.context.session.rollout.lines import rollout_rows, row_value
from acmserve.context.session.rollout.record import (
    MAIN_THREAD,
    NO_ROLLOUT,
    CalledTool,
    Initiator,
    RolloutRecord,
    Sampled,
)
from acmserve.context.session.state import SearchHit, SessionState, TranscriptEntry
from acmserve.context.storage.codecs.rows import entry_value, fragment_value, pack
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.context.transcript.message import Message, Place, texts
from acmserve.context.transcript.omissions import EMPTY, MessageOmissions, Omissions

# NUL and text that looks like an escape: what a file format gets wrong first.
TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=12),
    st.sampled_from(["", "\x00\x00", "\\u0000", "\\\x00", "\\\\u0000\x00", "a\nb", "é中😀"]),
)
# Halves of surrogate pairs stand only where nobody reads: `adopt` refuses them in contents.
ANY_TEXTS = TEXTS | st.text(st.characters(min_codepoint=0xD800, max_codepoint=0xDFFF), max_size=3)
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | ANY_TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXTS, inner, max_size=3),
    max_leaves=6,
)
PARTS = st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}) | st.just(
    {"type": "image_url", "image_url": {}}
)
MESSAGES = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["system", "user", "assistant", "tool"]),
        "content": TEXTS | st.lists(PARTS, max_size=3) | st.none(),
    },
    optional={"x": JSON, "tool_call_id": TEXTS},
)


@st.composite
def session_states(draw: st.DrawFn) -> SessionState:
    """A state as the operations of `state.py` make them, with fragments of every visibility."""
    state = SessionState(digest_key=draw(st.binary(min_size=1, max_size=64)))
    state = adopt(state, draw(st.lists(MESSAGES, max_size=4))).state
    for messages in draw(st.lists(st.lists(MESSAGES, max_size=2), max_size=2)):
        state = end_turn(append_answer(append_internal(state, messages), draw(MESSAGES), draw(st.none() | MESSAGES)))
    pieces = [piece for index, entry in enumerate(state.entries) for piece in _pieces(draw, index, entry)]
    fragments = [_fragment(draw, f"f{index:05x}", piece) for index, piece in enumerate(pieces)]
    hits = [SearchHit(f"s{index:05x}", piece.place, piece.start, piece.end) for index, piece in enumerate(pieces)]
    return SessionState(
        state.entries,
        tuple(fragments),
        tuple(hits),
        draw(st.integers(0, 9)),
        state.num_turns,
        state.digest_key,
        draw(_omissions(len(state.entries))),
        draw(st.none() | BUDGETS),
        redacted=draw(_redacted()),
        rollout=draw(st.just(NO_ROLLOUT) | rollouts()),
    )


@st.composite
def rollouts(draw: st.DrawFn) -> RolloutRecord:
    """A record in which prompts go on from earlier ones, edit them, or begin anew."""
    record = RolloutRecord().begun(draw(TEXTS), draw(st.none() | TEXTS))
    tokens = st.lists(st.integers(0, 3), max_size=6)
    for number in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            arguments = draw(st.dictionaries(TEXTS, JSON, max_size=2))
            record = record.operated(draw(st.sampled_from(Initiator)), draw(TEXTS), arguments, draw(st.none() | COUNTS))
        before = draw(st.integers(0, number)) - 1
        whole = [] if before < 0 else [*record.prompt(before), *record.completions[before].sampled.token_ids]
        prompt = [*whole[: draw(st.integers(0, len(whole)))], *draw(tokens)]
        sampled_ids = tuple(draw(tokens))
        logprobs = draw(st.none() | st.just(tuple(-0.5 for _ in sampled_ids)))
        calls = tuple(CalledTool(name, draw(st.none() | TEXTS)) for name in draw(st.lists(TEXTS, max_size=2)))
        sampled = Sampled(sampled_ids, logprobs, draw(TEXTS), draw(st.none() | TEXTS), calls)
        record = record.completed(prompt, sampled, draw(st.sampled_from([MAIN_THREAD, "b"])), draw(st.integers(0, 2)))
    return record


COUNTS = st.integers(-9, 9)


@st.composite
def _redacted(draw: st.DrawFn) -> tuple[RedactedText, ...]:
    texts = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=2))
    sealed = (seal_text(text, b"key", f"r{number}", "user", number) for number, text in enumerate(texts))
    return tuple(text for text in sealed if text is not None)


BUDGETS = st.sampled_from(
    [
        Budget(100),
        Budget(7, 3, "pi-cwl", {"bulk_tools": frozenset({"ls", "é"})}),
        Budget(
            2**40,
            1,
            "clear_tool_uses",
            {"keep": 0, "exclude_tools": frozenset({"a"}), "clear_tool_inputs": True},
        ),
    ]
)


@st.composite
def _omissions(draw: st.DrawFn, num_entries: int) -> Omissions:
    if not num_entries or not draw(st.booleans()):
        return EMPTY
    entry, start = draw(st.integers(0, num_entries - 1)), draw(st.integers(0, num_entries - 1))
    notes = tuple(draw(st.lists(TEXTS, min_size=1, max_size=2)))
    kept = MessageOmissions(draw(st.booleans()), draw(st.booleans()), frozenset({draw(st.integers(0, 3))}), notes=notes)
    return Omissions(((start, draw(st.integers(start + 1, num_entries))),), {entry: kept})


def _pieces(draw: st.DrawFn, index: int, entry: TranscriptEntry) -> list[Piece]:
    found = []
    for part, text in texts(entry.message):
        middle = draw(st.integers(0, len(text)))
        halves = [(0, middle), (middle, len(text))]
        found += [Piece(Place(index, part), a, b) for a, b in halves if a < b and draw(st.booleans())]
    return found


def _fragment(draw: st.DrawFn, fragment_id: str, piece: Piece) -> Fragment:
    visibility = draw(st.sampled_from(Visibility))
    shown = None if visibility is Visibility.VISIBLE else (draw(TEXTS),)
    summaries = draw(st.dictionaries(TEXTS, TEXTS, max_size=2))
    focus = draw(TEXTS) if visibility is Visibility.SUMMARIZED else None
    return Fragment(
        fragment_id, "user", (piece,), draw(st.integers(0, 99)), visibility, shown, focus, tuple(summaries.items())
    )


def chat(*contents: str) -> list[Message]:
    """Messages of a user with these contents."""
    return [{"role": "user", "content": content} for content in contents]


def conversation(contents: Sequence[str]) -> SessionState:
    """The state of a session into which these messages were taken."""
    return adopt(SessionState(digest_key=b"key"), chat(*contents)).state


def archive_of(store: SessionStore) -> Archive:
    """The file behind a store, for what its callers cannot do."""
    assert store._stored is not None
    return store._stored._archive


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def size(state: SessionState) -> int:
    """Bytes of a state as the store counts them, all counted anew."""
    rows = [entry_value(entry) for entry in state.entries]
    rows += [fragment_value(fragment) for fragment in (*state.redacted, *state.fragments)]
    rows += [row_value(row) for row in rollout_rows(state.rollout)]
    return sum(len(pack(row)) for row in rows)
