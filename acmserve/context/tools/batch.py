"""Several edits asked for at once, by a person or a policy: one plan, all or nothing.

    edits       fold f1a2b3      summarize messages [4, 9)      redact f7d674
    state  ---------> state ------------------------> state ---------> state      only the last one is ever stored

Each edit sees the result of the one before. The engine sees only the conversation that results, so the text behind
them moves once. A summary needs a model, which this layer does not have. The outcome then names it in `needs`, and the
caller runs the same batch again with the summary supplied.

Decision: an edit costs what it changes, and not what stands behind it. A request may have a thousand edits of 65,536
messages. The tokens that the next turn computes are counted once, over the whole batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from acmserve.context.edits import fragments as edit
from acmserve.context.edits.cost import KnownEvictions, ShownTexts, num_saved_by
from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.find import editable_texts
from acmserve.context.edits.steps import Steps, result_of
from acmserve.context.session.fragment import Fragment
from acmserve.context.session.render import readable_text
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import SummaryWanted, ToolContext
from acmserve.context.transcript.tokenizer import RememberedStarts, Tokenizer, count_tokens
from acmserve.errors import InvalidRequest


class EditKind(Enum):
    """What is done to a fragment."""

    FOLD = "fold"
    RESTORE = "restore"
    SUMMARIZE = "summarize"
    REDACT = "redact"


@dataclass(frozen=True, slots=True)
class Edit:
    """One edit, of a fragment or of the messages `[start, end)`. A range becomes a fragment of its own."""

    kind: EditKind
    fragment_id: str | None = None
    messages: tuple[int, int] | None = None
    focus: str | None = None


@dataclass(frozen=True, slots=True)
class EditDone:
    """One edit carried out: the fragment as it is now, and the tokens that it showed before and shows now."""

    kind: EditKind
    fragment: Fragment
    num_tokens_before: int
    num_tokens_after: int


@dataclass(frozen=True, slots=True)
class BatchOutcome:
    """The state after all edits. With `needs` nothing was done yet."""

    state: SessionState
    done: tuple[EditDone, ...] = ()
    needs: SummaryWanted | None = None


def run_batch(
    state: SessionState, batch: Sequence[Edit], context: ToolContext, summaries: Mapping[tuple[str, str], str]
) -> BatchOutcome:
    """Carry out all edits in order. `summaries` has the summaries made so far, by (fragment id, focus).

    Raises `InvalidRequest` (`NotFound`, `Conflict`) whose field is the path of the edit, `edits[2].fragment_id`.
    """
    return result_of(batch_steps(state, batch, context, summaries))


def batch_steps(
    state: SessionState, batch: Sequence[Edit], context: ToolContext, summaries: Mapping[tuple[str, str], str]
) -> Steps[BatchOutcome]:
    """What `run_batch` does, in steps: an edit, or a text of one that is counted."""
    before, done, evictions = state, [], KnownEvictions()
    context = replace(context, tokenizer=RememberedStarts(context.tokenizer))
    for index, wanted in enumerate(batch):
        yield from _read(state, wanted, context.tokenizer)
        try:
            state, fragment = _target(state, wanted, context)
            if wanted.kind is EditKind.SUMMARIZE:
                missing = _missing_summary(state, fragment, wanted, summaries)
                if missing is not None:
                    return BatchOutcome(before, needs=missing)
            num_before = yield from ShownTexts(state, context.tokenizer, evictions).count_steps(fragment.pieces)
            shown = state
            state = _apply(state, fragment, wanted, context, summaries, evictions)
        except InvalidRequest as error:
            by_range = wanted.messages is not None and wanted.fragment_id is None
            field = "messages" if by_range and error.field == "fragment_id" else error.field
            raise type(error)(f"edits[{index}].{field}", error.message, error.remedy) from None
        new = state.fragment(fragment.fragment_id)
        num_saved = num_saved_by(shown, state, context.tokenizer, evictions)
        done.append(EditDone(wanted.kind, new, num_before, num_before - num_saved))
        yield
    return BatchOutcome(state, tuple(done))


def _read(state: SessionState, wanted: Edit, tokenizer: Tokenizer) -> Iterator[None]:
    """Count the texts of a range one by one. What is wrong with it says `_target`."""
    if wanted.messages is None or wanted.fragment_id is not None:
        return
    start, end = wanted.messages
    for entry in state.entries[max(start, 0) : max(end, 0)]:
        for _, text in editable_texts(entry.message):
            count_tokens(tokenizer, text)
        yield


def _target(state: SessionState, wanted: Edit, context: ToolContext) -> tuple[SessionState, Fragment]:
    if (wanted.fragment_id is None) == (wanted.messages is None):
        raise InvalidRequest("fragment_id", "name a fragment or a range of messages, one of the two.")
    if wanted.fragment_id is not None:
        return state, state.fragment(wanted.fragment_id)
    if wanted.kind is EditKind.RESTORE:
        raise InvalidRequest("messages", "a restore needs the id of a fragment.", "GET .../context lists the ids.")
    assert wanted.messages is not None
    cut = cut_messages(state, *wanted.messages, context.tokenizer)
    return cut.state, cut.fragments[0]


def _missing_summary(
    state: SessionState, fragment: Fragment, wanted: Edit, summaries: Mapping[tuple[str, str], str]
) -> SummaryWanted | None:
    focus = _focus(wanted)
    edit.check_summarizable(state, fragment.fragment_id, focus)
    if fragment.summary(focus) is not None or (fragment.fragment_id, focus) in summaries:
        return None
    return SummaryWanted(fragment.fragment_id, readable_text(state, fragment), focus, fragment.num_tokens)


def _focus(wanted: Edit) -> str:
    return wanted.focus if wanted.focus is not None else "main points"


def _apply(
    state: SessionState,
    fragment: Fragment,
    wanted: Edit,
    context: ToolContext,
    summaries: Mapping[tuple[str, str], str],
    evictions: KnownEvictions,
) -> SessionState:
    fragment_id = fragment.fragment_id
    match wanted.kind:
        case EditKind.FOLD:
            return edit.fold(state, fragment_id, context.suite, context.tokenizer, evictions)
        case EditKind.RESTORE:
            return edit.restore(state, fragment_id)
        case EditKind.REDACT:
            return edit.redact(state, fragment_id)
        case EditKind.SUMMARIZE:
            focus = _focus(wanted)
            summary = fragment.summary(focus)
            if summary is None:
                summary = summaries[fragment_id, focus]
            return edit.summarize(state, fragment_id, focus, summary, context.suite, context.tokenizer, evictions)
