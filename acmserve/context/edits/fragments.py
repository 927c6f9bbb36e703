"""The edits of a session: hide fragments, show them again. Every function is pure: state in, state out.

            fragment                 fold                            restore
    visible text ----> visible fragment ----> folded or summarized ----> visible, byte for byte
                                       redact \\---> redacted: the text is gone, there is no way back

`cut.py` makes the fragments. Whatever is asked for wrongly raises `InvalidRequest` (or `NotFound`, `Conflict`) with the
argument's name and a remedy. The caller still holds the state from before. Several edits in a row are one plan: the
engine sees only the conversation that results. It does not know who asks (a model's tool call, a person, a policy), or
what KV is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from acmserve.context.alignment.redacted_text import RedactedText, erased, seal_text
from acmserve.context.edits.cost import KnownEvictions, num_saved_by, num_tokens_shown
from acmserve.context.edits.find import pieces_by_place
from acmserve.context.schema.suite_registry import name_of
from acmserve.context.session import marker
from acmserve.context.session.branches.branch import hide_closed
from acmserve.context.session.carrying.carry_over import cut_out
from acmserve.context.session.carrying.redactions import cut_notes, cut_tasks
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.nesting import PiecesByPlace, hiding, minus
from acmserve.context.session.state import Author, SessionState, TextReader, TranscriptEntry
from acmserve.context.transcript.message import Part, Place, with_texts
from acmserve.context.transcript.omissions import EMPTY
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import Conflict, InvalidRequest

MAX_FOCUS_CHARS = 200


def fold(
    state: SessionState, fragment_id: str, suite: str, tokenizer: Tokenizer, evictions: KnownEvictions | None = None
) -> SessionState:
    """Hide a fragment behind a marker."""
    fragment = _shown(state, fragment_id)
    if fragment.visibility is Visibility.FOLDED:
        name = fragment.fragment_id
        raise Conflict("fragment_id", f"{name} is folded already.", _way_back(suite, name))
    after = state.replace_fragment(folded(state, fragment, suite))
    _check_shorter(after, fragment, tokenizer, "folding", evictions)
    return after


def folded(state: SessionState, fragment: Fragment, suite: str) -> Fragment:
    """A fragment as a fold leaves it."""
    shown = marker.folded(fragment.fragment_id, fragment.num_tokens, len(fragment.pieces), suite)
    shown = _in_line(state, fragment, shown)
    more = marker.more_template(suite)
    return replace(fragment, visibility=Visibility.FOLDED, shown=shown, focus=None, more=more)


def summarize(
    state: SessionState,
    fragment_id: str,
    focus: str,
    summary: str,
    suite: str,
    tokenizer: Tokenizer,
    evictions: KnownEvictions | None = None,
) -> SessionState:
    """Show a summary in the place of a fragment, and keep the summary."""
    fragment = check_summarizable(state, fragment_id, focus)
    summary = summary.strip()
    if not summary:
        raise InvalidRequest("fragment_id", f"the summary of {fragment_id} came out empty; nothing was changed.")
    shown = marker.summarized(fragment.fragment_id, fragment.num_tokens, len(fragment.pieces), suite, focus, summary)
    shown = _in_line(state, fragment, shown)
    summaries = (*(s for s in fragment.summaries if s[0] != focus), (focus, summary))
    new = replace(fragment, visibility=Visibility.SUMMARIZED, shown=shown, focus=focus, summaries=summaries)
    after = state.replace_fragment(new)
    _check_shorter(after, fragment, tokenizer, "summarizing", evictions)
    return after


def check_summarizable(state: SessionState, fragment_id: str, focus: str) -> Fragment:
    """The fragment, when it may be summarized with this focus. Raises else."""
    if not focus.strip():
        raise InvalidRequest("focus", "is empty.", "Say what the summary is to keep, for instance 'key decisions'.")
    if len(focus) > MAX_FOCUS_CHARS or '"' in focus or not focus.isprintable():
        raise InvalidRequest(
            "focus", f"must be one line of at most {MAX_FOCUS_CHARS} characters without double quotes."
        )
    fragment = _shown(state, fragment_id)
    if fragment.focus == focus:
        raise Conflict("fragment_id", f'{fragment.fragment_id} is shown as a summary with the focus "{focus}" already.')
    return fragment


def restore(state: SessionState, fragment_id: str) -> SessionState:
    """Show the original text of a folded or summarized fragment again."""
    fragment = _editable(state, fragment_id)
    if not fragment.hidden:
        raise Conflict("fragment_id", f"{fragment_id} is visible already; nothing to restore.")
    return state.replace_fragment(_visible(fragment))


def restore_all(state: SessionState) -> SessionState:
    """Show everything and forget the fragments, except what was redacted."""
    gone = tuple(f for f in state.fragments if f.visibility is Visibility.REDACTED)
    return replace(state, fragments=gone)


def redact(state: SessionState, fragment_id: str) -> SessionState:
    """Erase the text of a fragment from the session: no restore, no search, no summary brings it back.

    Its characters are overwritten one for one, so that the offsets of other fragments in the same text stay true. What
    is kept of it are digests, by which it is known when a client sends it again. Fragments inside it go. It is cut out
    of what the client does not hold, too: results of searches quote it, and so do tasks of branches.

    A summary that may speak of it goes, too: those of the fragments around it, and that of the conversation. Then all
    that was taken out is shown, but for branches. Notes of explorations lose it. The rollout record is emptied: its
    prompts hold the text, and every later completion is written in their terms.
    """
    fragment = _editable(state, fragment_id)
    name = fragment.fragment_id
    erasing = PiecesByPlace(fragment.pieces)
    inside = {f.fragment_id for f in state.fragments if f is not fragment and erasing.covers(f.pieces)}
    redacted = [_resealed(text, fragment) if text.fragment_id in inside else text for text in state.redacted]
    redacted += _sealed(state, fragment)
    entries = _without_text(state, fragment)
    shown = _in_line(state, fragment, marker.redacted(name, fragment.num_tokens, len(fragment.pieces)))
    new = replace(fragment, visibility=Visibility.REDACTED, shown=shown, focus=None, summaries=(), waits=False)
    left_over = tuple(
        new if other is fragment else _without_summaries(other) if erasing.lie_within(other.pieces) else other
        for other in state.fragments
        if other.fragment_id not in inside
    )
    hits = tuple(hit for hit in state.hits if not erasing.overlaps([Piece(hit.place, hit.start, hit.end)]))
    state = replace(state, entries=tuple(entries), hits=hits, redacted=tuple(redacted), fragments=left_over)
    internal = [at for at, entry in enumerate(entries) if entry.origin is Author.INTERNAL]
    cut = cut_out(cut_tasks(replace(state, rollout=state.rollout.emptied())), internal)
    touched = {piece.place.entry for piece in fragment.pieces}
    touched |= {at for at in internal if cut.entries[at].message is not entries[at].message}
    if cut.omissions.may_tell_of(min(touched)):
        return replace(cut, omissions=hide_closed(EMPTY, cut.branches))
    return cut_notes(cut)


def _sealed(state: SessionState, fragment: Fragment) -> list[RedactedText]:
    """The digests of a fragment's text, without what was redacted in it before."""
    before = [piece for here in pieces_by_place(state, Visibility.REDACTED).values() for piece in here]
    read, named = TextReader(state), (fragment.fragment_id, fragment.role, fragment.num_tokens)
    texts = map(read.piece_text, minus(fragment.pieces, before))
    return [sealed for text in texts if (sealed := seal_text(text, state.digest_key, *named)) is not None]


def _without_text(state: SessionState, fragment: Fragment) -> list[TranscriptEntry]:
    """The entries of a session, with the text of a fragment overwritten."""
    spans: dict[int, dict[Part, list[tuple[int, int]]]] = {}
    for piece in fragment.pieces:
        spans.setdefault(piece.place.entry, {}).setdefault(piece.place.part, []).append((piece.start, piece.end))
    entries, read = list(state.entries), TextReader(state)
    for at, found in spans.items():
        gone = {part: erased(read.text_at(Place(at, part)), part, there) for part, there in found.items()}
        entries[at] = replace(entries[at], message=with_texts(entries[at].message, gone), sealed=True)
    return entries


def _resealed(text: RedactedText, fragment: Fragment) -> RedactedText:
    """The digests of a redaction that lies within one that is made now."""
    return replace(text, fragment_id=fragment.fragment_id, role=fragment.role, num_tokens=fragment.num_tokens)


def _without_summaries(fragment: Fragment) -> Fragment:
    """A fragment in which something was redacted. A summary of it may speak of that, so its text is shown again."""
    if fragment.visibility is Visibility.SUMMARIZED:
        fragment = _visible(fragment)
    return replace(fragment, summaries=())


def _editable(state: SessionState, fragment_id: str) -> Fragment:
    fragment = state.fragment(fragment_id)
    if fragment.visibility is Visibility.REDACTED:
        name = fragment.fragment_id
        raise Conflict("fragment_id", f"{name} was redacted; its text is gone and cannot be brought back.")
    return fragment


def _shown(state: SessionState, fragment_id: str) -> Fragment:
    """A fragment that may be hidden: it does not lie in another one that is."""
    fragment = _editable(state, fragment_id)
    outer = hiding(state.fragments, fragment.pieces)
    if outer is not None and outer is not fragment:
        raise Conflict(
            "fragment_id",
            f"{fragment.fragment_id} is hidden already, inside {outer.visibility.value} {outer.fragment_id}.",
            f"Restore {outer.fragment_id} first." if outer.visibility is not Visibility.REDACTED else "",
        )
    return fragment


def _in_line(state: SessionState, fragment: Fragment, shown: Iterable[str]) -> tuple[str, ...]:
    """What stands for each piece. A piece that ends its line leaves the line break there."""
    read = TextReader(state)
    return tuple(
        text + "\n" if read.piece_text(piece).endswith("\n") else text
        for piece, text in zip(fragment.pieces, shown, strict=True)
    )


def _way_back(suite: str, fragment_id: str) -> str:
    tool = name_of(suite, "restore", "restore_folded")
    return "" if tool is None else f'Call {tool}("{fragment_id}") to read it.'


def _check_shorter(
    after: SessionState, fragment: Fragment, tokenizer: Tokenizer, doing: str, evictions: KnownEvictions | None
) -> None:
    """Raise `Conflict` where the conversation is no shorter than with the text of the fragment."""
    before = after.replace_fragment(_visible(fragment))
    num_saved = num_saved_by(before, after, tokenizer, evictions)
    if num_saved <= 0:
        num_before = num_tokens_shown(before, fragment, tokenizer)
        raise Conflict(
            "fragment_id",
            f"{doing} {fragment.fragment_id} would save nothing: its text shows {num_before:,} tokens, "
            f"what would stand there has {num_before - num_saved:,}.",
            "Leave it visible, or fragment a longer text around it.",
        )


def _visible(fragment: Fragment) -> Fragment:
    return replace(fragment, visibility=Visibility.VISIBLE, shown=None, focus=None, waits=False, more="")
