"""The edits of a session: cut fragments, hide them, show them again. Every function is pure: state in, state out.

            fragment                 fold                            restore
    visible text ----> visible fragment ----> folded or summarized ----> visible, byte for byte
                                       redact \\---> redacted: the text is gone, there is no way back

Whatever is asked for wrongly raises `InvalidRequest` (or `NotFound`, `Conflict`) with the argument's name and a remedy.
The caller still holds the state from before. Several edits in a row are one plan: the engine sees only the conversation
that results. It does not know who asks (a model's tool call, a person, a policy), or what KV is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from acmserve.context.alignment.likeness import GONE
from acmserve.context.alignment.redacted_text import seal_text
from acmserve.context.edits.find import find_all, pieces_by_place, stretches, texts_of
from acmserve.context.edits.split import plan_split
from acmserve.context.schema.suite_registry import name_of
from acmserve.context.session import marker
from acmserve.context.session.branches.branch import hide_closed
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Place, texts, with_texts
from acmserve.context.transcript.omissions import EMPTY
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.errors import Conflict, InvalidRequest, NotFound

MAX_FOCUS_CHARS = 200


@dataclass(frozen=True, slots=True)
class Cut:
    """The result of cutting: the new state and the new fragments, in order."""

    state: SessionState
    fragments: tuple[Fragment, ...]
    num_candidates: int = 1


def cut_between(
    state: SessionState, start_marker: str, end_marker: str, num_fragments: int, role: str, tokenizer: Tokenizer
) -> Cut:
    """Cut the text from `start_marker` to the next `end_marker`, both included, into about equal fragments.

    The first start marker counts that stands in visible text. The span may cross several messages of the role.
    """
    _check_marker("start_marker", start_marker)
    _check_marker("end_marker", end_marker)
    where = [Place(index, part) for index, part, _ in texts_of(state, role)]
    start, num_candidates = _find_start(state, where, start_marker, role)
    end = _find_end(state, where, start, start_marker, end_marker, role)
    pieces = _pieces_between(state, where, start, end)
    _check_free(state, pieces, "start_marker")
    cut = _cut(state, pieces, num_fragments, role, tokenizer)
    return replace(cut, num_candidates=num_candidates)


def cut_messages(state: SessionState, start: int, end: int, tokenizer: Tokenizer) -> Cut:
    """Make one fragment of all the text of messages `[start, end)`, as `GET .../context` numbers them."""
    if not 0 <= start < end <= len(state.entries):
        raise InvalidRequest(
            "messages", f"[{start}, {end}) is not a range of the {len(state.entries)} messages of this session."
        )
    pieces = [
        Piece(Place(index, part), 0, len(text))
        for index in range(start, end)
        for part, text in texts(state.entries[index].message)
    ]
    if not pieces:
        raise InvalidRequest("messages", f"messages [{start}, {end}) have no text that could be hidden.")
    _check_free(state, pieces, "messages")
    return _cut(state, pieces, 1, "all", tokenizer)


def fold(state: SessionState, fragment_id: str, suite: str, tokenizer: Tokenizer) -> SessionState:
    """Hide a fragment behind a marker."""
    fragment = _editable(state, fragment_id)
    if fragment.visibility is Visibility.FOLDED:
        raise Conflict("fragment_id", f"{fragment_id} is folded already.", _way_back(suite, fragment_id))
    shown = _in_line(state, fragment, _fold_marker(fragment, suite))
    _check_shorter(fragment, shown, tokenizer, "folding")
    return state.replace_fragment(replace(fragment, visibility=Visibility.FOLDED, shown=shown, focus=None))


def summarize(
    state: SessionState, fragment_id: str, focus: str, summary: str, suite: str, tokenizer: Tokenizer
) -> SessionState:
    """Show a summary in the place of a fragment, and keep the summary."""
    fragment = check_summarizable(state, fragment_id, focus)
    summary = summary.strip()
    if not summary:
        raise InvalidRequest("fragment_id", f"the summary of {fragment_id} came out empty; nothing was changed.")
    shown = marker.summarized(fragment_id, fragment.num_tokens, len(fragment.pieces), suite, focus, summary)
    shown = _in_line(state, fragment, shown)
    _check_shorter(fragment, shown, tokenizer, "summarizing")
    summaries = (*(s for s in fragment.summaries if s[0] != focus), (focus, summary))
    new = replace(fragment, visibility=Visibility.SUMMARIZED, shown=shown, focus=focus, summaries=summaries)
    return state.replace_fragment(new)


def check_summarizable(state: SessionState, fragment_id: str, focus: str) -> Fragment:
    """The fragment, when it may be summarized with this focus. Raises else."""
    if not focus.strip():
        raise InvalidRequest("focus", "is empty.", "Say what the summary is to keep, for instance 'key decisions'.")
    if len(focus) > MAX_FOCUS_CHARS or '"' in focus or not focus.isprintable():
        raise InvalidRequest(
            "focus", f"must be one line of at most {MAX_FOCUS_CHARS} characters without double quotes."
        )
    fragment = _editable(state, fragment_id)
    if fragment.focus == focus:
        raise Conflict("fragment_id", f'{fragment_id} is shown as a summary with the focus "{focus}" already.')
    return fragment


def restore(state: SessionState, fragment_id: str) -> SessionState:
    """Show the original text of a folded or summarized fragment again."""
    fragment = _editable(state, fragment_id)
    if not fragment.hidden:
        raise Conflict("fragment_id", f"{fragment_id} is visible already; nothing to restore.")
    return state.replace_fragment(replace(fragment, visibility=Visibility.VISIBLE, shown=None, focus=None))


def restore_all(state: SessionState) -> SessionState:
    """Show everything and forget the fragments, except what was redacted."""
    gone = tuple(f for f in state.fragments if f.visibility is Visibility.REDACTED)
    return replace(state, fragments=gone)


def redact(state: SessionState, fragment_id: str) -> SessionState:
    """Erase the text of a fragment from the session: no restore, no search, no summary brings it back.

    Its characters are overwritten one for one, so that the offsets of other fragments in the same text stay true. What
    is kept of it are digests, by which it is known when a client sends it again.

    A summary of the conversation that may speak of it goes, too, and all that was taken out is shown, but for branches.
    The rollout record is emptied: its prompts hold the text, and every later completion is written in their terms.
    """
    fragment = _editable(state, fragment_id)
    entries, redacted = list(state.entries), list(state.redacted)
    for piece in fragment.pieces:
        entry = entries[piece.place.entry]
        text = dict(texts(entry.message))[piece.place.part]
        erased = text[piece.start : piece.end]
        sealed = seal_text(erased, state.digest_key, fragment_id, fragment.role, fragment.num_tokens)
        redacted += [] if sealed is None else [sealed]
        gone = text[: piece.start] + GONE * (piece.end - piece.start) + text[piece.end :]
        message = with_texts(entry.message, {piece.place.part: gone})
        entries[piece.place.entry] = replace(entry, message=message, sealed=True)
    shown = marker.redacted(fragment_id, fragment.num_tokens, len(fragment.pieces))
    shown = _in_line(state, fragment, shown)
    new = replace(fragment, visibility=Visibility.REDACTED, shown=shown, focus=None, summaries=())
    hits = tuple(hit for hit in state.hits if not fragment.overlaps((Piece(hit.place, hit.start, hit.end),)))
    summarized = state.omissions.summarized
    if summarized is not None and any(piece.place.entry <= summarized for piece in fragment.pieces):
        state = replace(state, omissions=hide_closed(EMPTY, state.branches))
    state = replace(state, rollout=state.rollout.emptied(), redacted=tuple(redacted))
    return replace(state, entries=tuple(entries), hits=hits).replace_fragment(new)


def _editable(state: SessionState, fragment_id: str) -> Fragment:
    fragment = state.fragment(fragment_id)
    if fragment.visibility is Visibility.REDACTED:
        raise Conflict("fragment_id", f"{fragment_id} was redacted; its text is gone and cannot be brought back.")
    return fragment


def num_marker_tokens(fragment: Fragment, suite: str, tokenizer: Tokenizer) -> int:
    """Tokens of what would stand there if the fragment were folded."""
    return sum(count_tokens(tokenizer, text) for text in _fold_marker(fragment, suite))


def _fold_marker(fragment: Fragment, suite: str) -> tuple[str, ...]:
    return marker.folded(fragment.fragment_id, fragment.num_tokens, len(fragment.pieces), suite)


def _in_line(state: SessionState, fragment: Fragment, shown: Iterable[str]) -> tuple[str, ...]:
    """What stands for each piece. A piece that ends its line leaves the line break there."""
    return tuple(
        text + "\n" if state.piece_text(piece).endswith("\n") else text
        for piece, text in zip(fragment.pieces, shown, strict=True)
    )


def _way_back(suite: str, fragment_id: str) -> str:
    tool = name_of(suite, "restore", "restore_folded")
    return "" if tool is None else f'Call {tool}("{fragment_id}") to read it.'


def _check_marker(name: str, text: str) -> None:
    if not text.strip():
        raise InvalidRequest(name, "is empty.", "Give the first (or last) words of the text to fragment.")


def _check_shorter(fragment: Fragment, shown: Iterable[str], tokenizer: Tokenizer, doing: str) -> None:
    num_shown = sum(count_tokens(tokenizer, text) for text in shown)
    if num_shown >= fragment.num_tokens:
        raise Conflict(
            "fragment_id",
            f"{doing} {fragment.fragment_id} would save nothing: its text has {fragment.num_tokens} tokens, "
            f"what would stand there has {num_shown}.",
            "Leave it visible, or fragment a longer text.",
        )


def _check_free(state: SessionState, pieces: Sequence[Piece], name: str) -> None:
    wanted = {piece.place: piece for piece in pieces}
    taken = [
        fragment.fragment_id
        for fragment in state.fragments
        if any(piece.place in wanted and piece.overlaps(wanted[piece.place]) for piece in fragment.pieces)
    ]
    if taken:
        raise Conflict(
            name,
            f"this text overlaps {'fragments' if len(taken) > 1 else 'fragment'} {', '.join(taken)}.",
            "Use those ids, or choose markers outside of them; a text belongs to one fragment only.",
        )


def _find_start(state: SessionState, where: Sequence[Place], marker_text: str, role: str) -> tuple[Piece, int]:
    """The first visible occurrence of the start marker, and how many visible ones there are."""
    visible, num_visible = _first(state, where, marker_text, Visibility.FOLDED, Visibility.SUMMARIZED)
    if visible is not None:
        return visible, num_visible
    covered, _ = _first(state, where, marker_text)
    if covered is not None:
        inside = next(f.fragment_id for f in state.fragments if f.hidden and f.overlaps((covered,)))
        raise Conflict("start_marker", f"stands only in hidden fragment {inside}.", f"Restore {inside} first.")
    raise NotFound(
        "start_marker",
        f"no message of role '{role}' contains it.",
        "Copy the marker exactly, or search_context for it; role 'all' looks into every message.",
    )


def _find_end(
    state: SessionState, where: Sequence[Place], start: Piece, start_marker: str, end_marker: str, role: str
) -> Piece:
    """The first occurrence of the end marker behind the start marker. Words that stand there once may be both."""
    for place in where:
        if place < start.place:
            continue
        offset = start.end if place == start.place else 0
        found = state.text_at(place).find(end_marker, offset)
        if found >= 0:
            return Piece(place, found, found + len(end_marker))
    if end_marker == start_marker:
        return start
    raise NotFound(
        "end_marker",
        f"no message of role '{role}' contains it behind the start marker.",
        "Choose words that stand after the start marker, or swap the two.",
    )


def _first(state: SessionState, where: Sequence[Place], wanted: str, *without: Visibility) -> tuple[Piece | None, int]:
    """The first occurrence outside of redacted text and of fragments in these states, and the number of all."""
    covered = pieces_by_place(state, Visibility.REDACTED, *without)
    first, num_found = None, 0
    for place in where:
        text = state.text_at(place)
        positions, num = find_all(text, wanted, stretches(len(text), covered.get(place, ())), 1)
        num_found += num
        if first is None and positions:
            first = Piece(place, positions[0], positions[0] + len(wanted))
    return first, num_found


def _pieces_between(state: SessionState, where: Sequence[Place], start: Piece, end: Piece) -> list[Piece]:
    pieces = []
    for place in where:
        if start.place <= place <= end.place:
            first = start.start if place == start.place else 0
            last = end.end if place == end.place else len(state.text_at(place))
            pieces.append(Piece(place, first, last))
    return pieces


def _cut(state: SessionState, pieces: Sequence[Piece], num_fragments: int, role: str, tokenizer: Tokenizer) -> Cut:
    runs = plan_split([(piece, state.piece_text(piece)) for piece in pieces], num_fragments, tokenizer)
    made = []
    for run, num_tokens in runs:
        fragment_id, state = state.new_id("f")
        fragment = Fragment(fragment_id, role, run, num_tokens)
        state = replace(state, fragments=(*state.fragments, fragment))
        made.append(fragment)
    return Cut(state, tuple(made))
