"""The policy `compact`: a summary takes the place of the oldest steps. What is summarized, and what is left then.

    before   system  user  [step step step]  user  [step]  step  user     oldest first, until the target is met
    after    system  user                    user  summary step  user     with room for the longest summary
    again    system  user                    user                user  summary'  step  user
                                                                       made of the first one and the steps behind it

A step is a message of the assistant with the results of its calls. Messages of the user and the system stay, and so
does the last step. The summary stands where the last step stood that it covers: everything in front of it keeps its
place in the cache when it is made anew.

Decisions: the summarizer reads of each message what the model sees of it, but not its reasoning, which most templates
leave out, too; of the user's messages, which stay, it reads the beginning, to know what the steps answer. It is asked
only where the new steps weigh more than a summary may: otherwise a conversation that cannot be brought under its budget
would be summarized again in every turn, for nothing.

Pure: the summary comes from whoever carries the plan out. The same conversation gives the same text to summarize.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from acmserve.context.eviction.cwl import finish_plan
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, EvictionStep, Level, Protected
from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.omission_editor import OmissionEditor
from acmserve.context.transcript.omissions import NOTHING, Omissions, omit_from_messages
from acmserve.context.transcript.omitted_tokens import is_left
from acmserve.context.transcript.outline import Outline, Role, Use
from acmserve.context.transcript.plain_text import write_out
from acmserve.context.transcript.token_counts import TokenCounts

HEAD = "[summary of the conversation up to here]"
MAX_USER_CHARS = 600


@dataclass(frozen=True, slots=True)
class Summary:
    """What a model wrote, and the tokens that it read and wrote for it; None where it does not tell."""

    text: str
    input_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Compaction:
    """A summary that is wanted: of `text`, which has `num_tokens`, in at most `num_room` tokens with its head.

    `steps` are the entries that it covers, ascending; the last message of the assistant among them, `at`, will carry
    it. It holds for the conversation and for the shed that it was decided on.
    """

    steps: tuple[int, ...]
    at: int
    text: str
    num_tokens: int
    num_room: int
    target: int


def plan_compaction(
    outline: Outline,
    token_counts: TokenCounts,
    omissions: Omissions,
    whole: Sequence[Message],
    target: int,
    max_summary_tokens: int,
    end: int | None = None,
) -> Compaction | None:
    """Decide what is to be summarized so that at most `target` tokens are shown; None where it is not worth it.

    `whole` has one message for each entry, nothing taken out. Target 0 takes everything but the last step. Nothing from
    entry `end` on is summarized.
    """
    editor = OmissionEditor(outline, token_counts, omissions)
    steps: list[int] = []
    at, num_new, num_room = None, 0, max_summary_tokens
    for entry in _steps(outline, omissions, end):
        if at is not None and editor.num_tokens + num_room <= target:
            break
        size = editor.num_tokens
        _take(editor, outline, entry)
        steps.append(entry)
        if outline.lines[entry].role is Role.ASSISTANT:
            at = entry
            num_room = max_summary_tokens + token_counts.text_tokens(HEAD) + token_counts.size(entry).overhead
        if not omissions.entries.get(entry, NOTHING).summary:
            num_new += size - editor.num_tokens
    if at is None or num_new <= num_room:
        return None
    text = conversation_text(outline, omit_from_messages(whole, omissions), steps, omissions.summarized)
    return Compaction(tuple(steps), at, text, token_counts.count(text), num_room, target)


def summary_plan(
    compaction: Compaction, outline: Outline, token_counts: TokenCounts, omissions: Omissions, summary: str
) -> EvictionPlan:
    """The plan that puts a summary in the place of what it covers."""
    editor = OmissionEditor(outline, token_counts, omissions)
    before = editor.num_tokens
    for entry in compaction.steps:
        _take(editor, outline, entry)
    shown = f"{HEAD}\n{summary.strip()}"
    editor.set_summary(compaction.at, shown)
    return replace(
        _finish(compaction, editor, outline, token_counts, omissions, before),
        num_written=token_counts.text_tokens(shown),
    )


def predicted_plan(
    compaction: Compaction, outline: Outline, token_counts: TokenCounts, omissions: Omissions
) -> EvictionPlan:
    """What `summary_plan` would give for the longest summary there may be. For showing only: its shed has none."""
    editor = OmissionEditor(outline, token_counts, omissions)
    before = editor.num_tokens
    for entry in compaction.steps:
        _take(editor, outline, entry)
    plan = _finish(compaction, editor, outline, token_counts, omissions, before)
    num_after = plan.num_after + compaction.num_room
    step = replace(plan.steps[0], num_tokens=before - num_after)
    num_behind = plan.num_behind + compaction.num_room
    unmet = _unmet(outline, token_counts, compaction.target, num_after)
    return replace(
        plan,
        steps=(step,),
        num_after=num_after,
        num_behind=num_behind,
        num_written=compaction.num_room,
        unmet=unmet,
    )


def plan_nothing(outline: Outline, token_counts: TokenCounts, omissions: Omissions, target: int) -> EvictionPlan:
    """The plan that changes nothing, because no summary can be had; `unmet` names what is left."""
    num_shown = OmissionEditor(outline, token_counts, omissions).num_tokens
    return EvictionPlan(omissions, target, num_shown, num_shown, unmet=_unmet(outline, token_counts, target, num_shown))


def _unmet(outline: Outline, token_counts: TokenCounts, target: int, num_shown: int) -> BudgetUnmet | None:
    if num_shown <= target:
        return None
    num_all = len(outline)
    num_kept = token_counts.base_tokens + token_counts.between(0, num_all) - token_counts.omittable_between(0, num_all)
    left = (
        Protected("system and user messages", num_kept),
        Protected("the summary and the steps behind it", num_shown - num_kept),
    )
    return BudgetUnmet(num_shown - target, tuple(item for item in left if item.num_tokens))


def _finish(
    compaction: Compaction,
    editor: OmissionEditor,
    outline: Outline,
    token_counts: TokenCounts,
    omissions: Omissions,
    before: int,
) -> EvictionPlan:
    first, last = compaction.steps[0], compaction.steps[-1]
    what = f"message {first}" if first == last else f"messages {first} to {last}"
    steps = (EvictionStep(what, Level.SUMMARIZE, before - editor.num_tokens),)
    unmet = _unmet(outline, token_counts, compaction.target, editor.num_tokens)
    return finish_plan(editor, editor.omissions(), outline, token_counts, compaction.target, before, steps, unmet)


def _steps(outline: Outline, omissions: Omissions, end: int | None) -> Iterator[int]:
    """What may be summarized: messages of the assistant before the last one, and results that answer none of them."""
    last = outline.last_step()
    for entry in range(last if end is None else min(last, end)):
        line = outline.lines[entry]
        if line.role is Role.ASSISTANT:
            if not omissions.is_gone(entry) and is_left(line, omissions.entries.get(entry, NOTHING)):
                yield entry
        elif line.role is Role.RESULT and line.use is None and not omissions.in_gone(entry):
            yield entry


def _take(editor: OmissionEditor, outline: Outline, entry: int) -> None:
    """Take out a step altogether, and what stands in its place."""
    if outline.lines[entry].role is Role.ASSISTANT:
        for index in range(len(outline.lines[entry].names)):
            editor.drop_call(Use(entry, index))
        editor.drop_lines(entry)
    editor.drop_text(entry)


def conversation_text(
    outline: Outline, shown: Sequence[Message | None], steps: Sequence[int], summarized: int | None
) -> str:
    """What the summarizer reads of `steps`, and of the user's messages between them. `shown` is what the model sees."""
    covered = set(steps)
    first = min(0 if summarized is None else summarized, steps[0])
    messages: list[Message] = []
    for entry in range(first, len(outline)):
        line, message = outline.lines[entry], shown[entry]
        owner = entry if line.use is None else line.use.entry
        if message is None:
            continue
        if owner in covered:
            messages.append(message)
        elif line.is_user and entry < steps[-1]:
            said = "\n".join(text for _, text in texts(message))
            messages.append({"role": "user", "content": said[:MAX_USER_CHARS]})
    return write_out(messages)
