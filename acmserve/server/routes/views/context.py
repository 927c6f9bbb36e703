"""A session as its routes show it: the short description, and what the model sees now. Reads only.

Tokens are those of the texts, without the chat template's own: the receipt of a request counts everything.
"""

from __future__ import annotations

from collections.abc import Sequence

from acmserve.context.edits.cost import ShownTexts
from acmserve.context.edits.find import editable_texts
from acmserve.context.edits.fragments import restore_all
from acmserve.context.edits.steps import Steps
from acmserve.context.session.branches.branch import branch_at
from acmserve.context.session.fragment import Fragment, Piece, Visibility
from acmserve.context.session.precompute_options import PrecomputeOptions
from acmserve.context.session.render import evicted_entries, render, render_entries, render_whole
from acmserve.context.session.state import SessionState
from acmserve.context.storage.head import SessionHead
from acmserve.context.storage.session import Session
from acmserve.context.transcript.call_arguments import ArgumentPart, written_text
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import Tokenizer, count_tokens
from acmserve.server.http.strict_json import clean_json
from acmserve.server.routes.schemas.sessions import (
    ContextFragment,
    ContextMessage,
    ContextView,
    FragmentPiece,
    PrecomputeView,
    SessionInfo,
    ThreadView,
)
from acmserve.server.routes.views.branches import branch_infos

PREVIEW_CHARS = 80


def session_info(head: SessionHead, precompute: PrecomputeOptions, is_working: bool) -> SessionInfo:
    """The session without its contents. `precompute` is what holds for it, `is_working` whether it works now."""
    return SessionInfo(
        session_id=head.session_id,
        suite=head.suite,
        created_at=head.created_at,
        used_at=head.used_at,
        num_messages=head.num_messages,
        num_fragments=head.num_fragments,
        num_hidden_fragments=head.num_hidden_fragments,
        branch_of=head.parent,
        thread_of=head.thread_of,
        precompute=PrecomputeView.model_validate({**precompute.as_dict(), "working": is_working}),
    )


def thread_views(heads: Sequence[SessionHead]) -> list[ThreadView]:
    """Side threads as the session that they belong to lists them."""
    return [
        ThreadView(
            name=head.thread.name,
            session_id=head.session_id,
            num_messages=head.num_messages,
            used_at=head.used_at,
        )
        for head in heads
        if head.thread is not None
    ]


def context_steps(session: Session, tokenizer: Tokenizer, kv: Sequence[str | None]) -> Steps[ContextView]:
    """What the model sees of the session as it is when this begins, message by message.

    `kv` says for each message where its KV is.
    """
    state, left, branches = session.state, iter(kv), branch_infos(session, tokenizer)
    evicted = evicted_entries(state)
    messages = []
    for index, (entry, message) in enumerate(zip(state.entries, render_entries(state), strict=True)):
        inside = branch_at(state.branches, index)
        shown = ContextMessage(
            index=index,
            role=str(entry.message.get("role")),
            origin=entry.origin.value,
            num_tokens=0 if message is None else num_message_tokens(message, tokenizer),
            message=None if message is None else clean_json(dict(message)),
            evicted=(message is None or index in evicted) and (inside is None or inside.is_open),
            branch=None if inside is None else clean_json(inside.call_id),
            kv=None if message is None else next(left),
        )
        messages.append(shown)
        yield
    fragments, texts = [], ShownTexts(state, tokenizer)
    for fragment in state.fragments:
        fragments.append(fragment_view(fragment, texts))
        yield
    num_tokens = sum(message.num_tokens for message in messages)
    num_whole = yield from _count(render_whole(restore_all(state)), tokenizer)
    redacted = (f for f in fragments if f.state == Visibility.REDACTED.value)
    return ContextView(
        session_id=session.session_id,
        messages=messages,
        fragments=fragments,
        branches=branches,
        num_tokens=num_tokens,
        num_tokens_original=max(num_whole + sum(f.num_tokens - f.num_tokens_shown for f in redacted), 0),
    )


def count_context(state: SessionState, tokenizer: Tokenizer) -> Steps[int]:
    """Tokens of all texts that the model sees, message by message."""
    return _count(render(state), tokenizer)


def _count(messages: Sequence[Message], tokenizer: Tokenizer) -> Steps[int]:
    num = 0
    for message in messages:
        num += num_message_tokens(message, tokenizer)
        yield
    return num


def num_message_tokens(message: Message, tokenizer: Tokenizer) -> int:
    """Tokens of the texts of one message, and of those in its calls' arguments, as far as they can be edited."""
    return sum(count_tokens(tokenizer, written_text(text, part)) for part, text in editable_texts(message))


def _piece(piece: Piece) -> FragmentPiece:
    part, entry = piece.place.part, piece.place.entry
    if isinstance(part, ArgumentPart):
        path = [clean_json(step) for step in part.path]
        return FragmentPiece(index=entry, part=None, call=part.call, path=path, start=piece.start, end=piece.end)
    return FragmentPiece(index=entry, part=part, start=piece.start, end=piece.end)


def fragment_view(fragment: Fragment, shown: ShownTexts) -> ContextFragment:
    """One fragment: where it lies, and what the model sees of it. `shown` are the texts of its session."""
    pieces = [_piece(piece) for piece in fragment.pieces]
    gone = fragment.visibility is Visibility.REDACTED
    return ContextFragment(
        fragment_id=fragment.fragment_id,
        state=fragment.visibility.value,
        role=fragment.role,
        num_tokens=fragment.num_tokens,
        num_tokens_shown=sum(map(shown.num_tokens, fragment.pieces)),
        waits=fragment.waits,
        focus=fragment.focus,
        messages=pieces,
        preview=None if gone else shown.texts.piece_text(fragment.pieces[0])[:PREVIEW_CHARS],
    )
