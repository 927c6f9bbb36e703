"""A transcript message by message: what the client sent beside what the model sees. Reads only.

Decision: the first look at a long session counts all its tokens, which takes seconds. `transcript_rows` gives the event
loop back between messages, so that no turn waits for it. It works on one immutable state.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from acmserve.context.edits.cost import ShownTexts
from acmserve.context.edits.fragments import restore_all
from acmserve.context.session.branches.branch import branch_at
from acmserve.context.session.fragment import Fragment
from acmserve.context.session.render import evicted_entries, render_entries, render_whole
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.parts import call_name, tool_calls
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.server.http.strict_json import clean_json
from acmserve.server.routes.schemas.transcript import MAX_PREVIEW_CHARS, TranscriptMessage, TranscriptRow
from acmserve.server.routes.views.context import fragment_view, num_message_tokens

_SLICE_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class TranscriptView:
    """The rendered forms of one state. `kv` has one entry for each message of which something is shown."""

    state: SessionState
    sent: Sequence[Message]
    shown: Sequence[Message | None]
    evicted: frozenset[int]
    kv: Mapping[int, str | None]
    fragments: Mapping[int, Sequence[Fragment]]

    @staticmethod
    def of(state: SessionState, kv: Sequence[str | None]) -> TranscriptView:
        """That of a state. `kv` is what `Sessions.describe_kv` says of it."""
        shown = render_entries(state)
        left = [index for index, message in enumerate(shown) if message is not None]
        cut = defaultdict[int, list[Fragment]](list)
        for fragment in state.fragments:
            for index in dict.fromkeys(piece.place.entry for piece in fragment.pieces):
                cut[index].append(fragment)
        whole = render_whole(restore_all(state))
        return TranscriptView(state, whole, shown, evicted_entries(state), dict(zip(left, kv, strict=True)), cut)

    def row(self, index: int, tokenizer: Tokenizer) -> TranscriptRow:
        """One message in short."""
        sent, shown, entry = self.sent[index], self.shown[index], self.state.entries[index]
        inside = branch_at(self.state.branches, index)
        hidden = [fragment.fragment_id for fragment in self.fragments.get(index, ()) if fragment.hidden]
        is_evicted = (shown is None or index in self.evicted) and (inside is None or inside.is_open)
        num_sent = num_message_tokens(sent, tokenizer)
        return TranscriptRow(
            index=index,
            role=clean_json(str(sent.get("role"))),
            origin=entry.origin.value,
            state="evicted" if is_evicted else "hidden" if hidden else "whole",
            num_tokens=0 if shown is None else num_sent if shown is sent else num_message_tokens(shown, tokenizer),
            num_tokens_original=num_sent,
            fragments=hidden,
            branch=None if inside is None else clean_json(inside.call_id),
            kv=self.kv.get(index),
            preview=clean_json(_preview(sent if shown is None else shown)),
        )

    def message(self, index: int, tokenizer: Tokenizer) -> TranscriptMessage:
        """One message with its texts."""
        shown, texts_shown = self.shown[index], ShownTexts(self.state, tokenizer)
        return TranscriptMessage(
            **dict(self.row(index, tokenizer)),
            sent=clean_json(dict(self.sent[index])),
            shown=None if shown is None else clean_json(dict(shown)),
            cut=[fragment_view(fragment, texts_shown) for fragment in self.fragments.get(index, ())],
        )


async def transcript_rows(view: TranscriptView, start: int, end: int, tokenizer: Tokenizer) -> list[TranscriptRow]:
    """The messages `[start, end)` in short."""
    rows, began = [], time.monotonic()
    for index in range(start, min(end, len(view.state.entries))):
        rows.append(view.row(index, tokenizer))
        if time.monotonic() - began > _SLICE_SECONDS:
            await asyncio.sleep(0)
            began = time.monotonic()
    return rows


def _preview(message: Message) -> str:
    """How a message begins: its text, else the name of the tool that it calls."""
    for _, text in texts(message):
        begin = text[: 4 * MAX_PREVIEW_CHARS].split()
        if begin:
            return " ".join(begin)[:MAX_PREVIEW_CHARS]
    return ", ".join(call_name(call) for call in tool_calls(message))[:MAX_PREVIEW_CHARS]
