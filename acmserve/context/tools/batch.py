"""Several edits asked for at once, by a person or a policy: one plan, all or nothing.

    edits       fold f1a2b3      summarize messages [4, 9)      redact f7d674
    state  ---------> state ------------------------> state ---------> state      only the last one is ever stored

Each edit sees the result of the one before. The engine sees only the conversation that results, so the text behind
them moves once. A summary needs a model, which this layer does not have. The outcome then names it in `needs`, and the
caller runs the same batch again with the summary supplied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from acmserve.context.edits import fragments as edit
from acmserve.context.edits.cost import EditCost, effect_of, num_tokens_shown
from acmserve.context.edits.cut import cut_messages
from acmserve.context.session.fragment import Fragment
from acmserve.context.session.render import readable_text
from acmserve.context.session.state import SessionState
from acmserve.context.tools.tool import SummaryWanted, ToolContext
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
    cost: EditCost


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
    before, done = state, []
    for index, wanted in enumerate(batch):
        try:
            state, fragment = _target(state, wanted, context)
            if wanted.kind is EditKind.SUMMARIZE:
                missing = _missing_summary(state, fragment, wanted, summaries)
                if missing is not None:
                    return BatchOutcome(before, needs=missing)
            num_before = num_tokens_shown(state, fragment, context.tokenizer)
            shown = state
            state = _apply(state, fragment, wanted, context, summaries)
        except InvalidRequest as error:
            by_range = wanted.messages is not None and wanted.fragment_id is None
            field = "messages" if by_range and error.field == "fragment_id" else error.field
            raise type(error)(f"edits[{index}].{field}", error.message, error.remedy) from None
        new = state.fragment(fragment.fragment_id)
        effect = effect_of(shown, state, context.fidelity, context.tokenizer)
        done.append(EditDone(wanted.kind, new, num_before, num_before - effect.num_saved, effect.cost))
    return BatchOutcome(state, tuple(done))


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
) -> SessionState:
    fragment_id = fragment.fragment_id
    match wanted.kind:
        case EditKind.FOLD:
            return edit.fold(state, fragment_id, context.suite, context.tokenizer)
        case EditKind.RESTORE:
            return edit.restore(state, fragment_id)
        case EditKind.REDACT:
            return edit.redact(state, fragment_id)
        case EditKind.SUMMARIZE:
            focus = _focus(wanted)
            summary = fragment.summary(focus)
            if summary is None:
                summary = summaries[fragment_id, focus]
            return edit.summarize(state, fragment_id, focus, summary, context.suite, context.tokenizer)
