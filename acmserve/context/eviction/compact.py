"""The policy `compact`: a summary takes the place of the oldest steps. What is summarized, and what is left then.

    before   system  user  [step step step]  user  [step]  step  user     oldest first, until the target is met
    after    system  user                    user  summary step  user     with room for the longest summary
    again    system  user                    user                user  summary'  step  user
                                                                       made of the first one and the steps behind it

A step is a message of the assistant with the results of its calls. Messages of the user and the system stay, and so
does the last step. The summary stands where the last step stood that it covers. When it is made anew, everything in
front of it keeps its place in the cache.

Decisions: the summarizer reads of each message what the model sees of it, but not its reasoning, which most templates
leave out, too. Of the user's messages, which stay, it reads the beginning, to know what the steps answer. It is asked
only where the new steps weigh more than a summary may. Otherwise a conversation that cannot be brought under its budget
would be summarized again in every turn, for nothing.

Pure: the summary comes from whoever carries the plan out. The same conversation gives the same text to summarize.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, EvictionStep, Level, finish_plan
from acmserve.context.eviction.policy import Option, OptionKind
from acmserve.context.eviction.protected import said_and_rest
from acmserve.context.transcript.message import Message, texts
from acmserve.context.transcript.omission_editor import OmissionEditor
from acmserve.context.transcript.omissions import NOTHING, omit_from_messages
from acmserve.context.transcript.omitted_tokens import is_left
from acmserve.context.transcript.parts import Role
from acmserve.context.transcript.plain_text import write_out
from acmserve.errors import InvalidRequest

HEAD = "[summary of the conversation up to here]"
MAX_USER_CHARS = 600


@dataclass(frozen=True, slots=True)
class CompactPolicy:
    """A model writes a summary of the oldest steps, so it is planned in two steps (`plan_compaction`)."""

    summary: ClassVar[str] = "the oldest steps, for which a summary stands that a model writes"
    options: ClassVar[tuple[Option, ...]] = (
        Option(
            "instructions",
            OptionKind.TEXT,
            "",
            "What the summary is to keep, in place of the server's own instructions",
            "Give what the summary is to keep, as a text.",
        ),
    )
    needs_episodes: ClassVar[bool] = False
    needs_model: ClassVar[bool] = True

    instructions: str = ""

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        """Raises `InvalidRequest`: no plan is made without the summary."""
        raise InvalidRequest("budget.policy", "compact calls a model.", "Choose cwl or recency.")


@dataclass(frozen=True, slots=True)
class Summary:
    """What a model wrote, and the tokens that it read and wrote for it. None where it does not report them.

    `receipt` is the engine's where the summary was asked for behind the conversation itself. Where it was not,
    `flattened_because` says why.
    """

    text: str
    input_tokens: int | None = None
    output_tokens: int | None = None
    receipt: Mapping[str, Any] | None = None
    flattened_because: str = ""


@dataclass(frozen=True, slots=True)
class Compaction:
    """A summary that is wanted: of `text`, which has `num_tokens`, in at most `num_room` tokens with its head.

    `steps` are the entries that it covers, ascending. The last message of the assistant among them, `at`, will carry
    it. It holds for the conversation and the omissions that it was decided on. The entries before `end` are whole
    steps, and what it covers is among them.
    """

    steps: tuple[int, ...]
    at: int
    text: str
    num_tokens: int
    num_room: int
    target: int
    end: int = 0


def plan_compaction(
    view: ConversationView, whole: Sequence[Message], target: int, max_summary_tokens: int
) -> Compaction | None:
    """Decide what is to be summarized so that at most `target` tokens are shown. None where it is not worth it.

    `whole` has one message for each entry, nothing taken out. Target 0 takes everything but the last step. Nothing from
    an open branch on is summarized.
    """
    editor, token_counts = view.editor(), view.token_counts
    steps: list[int] = []
    at, num_new, num_room = None, 0, max_summary_tokens
    for entry in _steps(view):
        if at is not None and editor.num_tokens + num_room <= target:
            break
        size = editor.num_tokens
        _take(editor, view, entry)
        steps.append(entry)
        if view.outline.lines[entry].role is Role.ASSISTANT:
            at = entry
            num_room = max_summary_tokens + token_counts.text_tokens(HEAD) + token_counts.sizes[entry].overhead
        if not view.omissions.entries.get(entry, NOTHING).summary:
            num_new += size - editor.num_tokens
    if at is None or num_new <= num_room:
        return None
    observations = {
        entry
        for entry, line in enumerate(view.outline.lines)
        if line.role is Role.RESULT and whole[entry].get("role") == "user"
    }
    text = _conversation_text(view, omit_from_messages(whole, view.omissions, observations), steps)
    return Compaction(tuple(steps), at, text, token_counts.count(text), num_room, target, _end(view, steps[-1]))


def summary_plan(compaction: Compaction, view: ConversationView, summary: str) -> EvictionPlan:
    """The plan that puts a summary in the place of what it covers."""
    editor = _without_steps(compaction, view)
    shown = f"{HEAD}\n{summary.strip()}"
    editor.set_summary(compaction.at, shown, compaction.end)
    return replace(_finish(compaction, view, editor), num_written=view.token_counts.text_tokens(shown))


def predicted_plan(compaction: Compaction, view: ConversationView) -> EvictionPlan:
    """What `summary_plan` would give for the longest summary there may be. For showing only: it holds no summary."""
    plan = _finish(compaction, view, _without_steps(compaction, view))
    num_after = plan.num_after + compaction.num_room
    return replace(
        plan,
        steps=(replace(plan.steps[0], num_tokens=plan.num_before - num_after),),
        num_after=num_after,
        num_behind=plan.num_behind + compaction.num_room,
        num_written=compaction.num_room,
        unmet=_unmet(view, compaction.target, num_after),
    )


def plan_nothing(view: ConversationView, target: int) -> EvictionPlan:
    """The plan that changes nothing, because no summary can be had. `unmet` names what is left."""
    num_shown = view.editor().num_tokens
    return EvictionPlan(view.omissions, target, num_shown, num_shown, unmet=_unmet(view, target, num_shown))


def _unmet(view: ConversationView, target: int, num_shown: int) -> BudgetUnmet | None:
    if num_shown <= target:
        return None
    left = said_and_rest(view, num_shown, "the summary and the steps behind it")
    return BudgetUnmet(num_shown - target, left)


def _finish(compaction: Compaction, view: ConversationView, editor: OmissionEditor) -> EvictionPlan:
    first, last = compaction.steps[0], compaction.steps[-1]
    what = f"message {first}" if first == last else f"messages {first} to {last}"
    steps = (EvictionStep(what, Level.SUMMARIZE, editor.num_before - editor.num_tokens),)
    return finish_plan(view, editor, compaction.target, steps, _unmet(view, compaction.target, editor.num_tokens))


def _without_steps(compaction: Compaction, view: ConversationView) -> OmissionEditor:
    """An editor that has taken out what the summary covers."""
    editor = view.editor()
    for entry in compaction.steps:
        _take(editor, view, entry)
    return editor


def _steps(view: ConversationView) -> Iterator[int]:
    """What may be summarized: messages of the assistant before the last one, and results that answer none of them.

    A step of which a result came late, and was read by no answer, stays.
    """
    omissions, lines = view.omissions, view.outline.lines
    last, unread = view.last_step(), {use.entry for use in view.unread() if not omissions.has_lost(use)}
    for entry, line in enumerate(lines[: last if view.end is None else min(last, view.end)]):
        kept = omissions.entries.get(entry)
        if kept is None and omissions.gone and omissions.in_gone(entry):
            continue
        if entry in unread and (kept is None or not kept.summary):
            continue
        if (line.role is Role.ASSISTANT and (kept is None or is_left(line, kept))) or (
            line.role is Role.RESULT and line.use is None
        ):
            yield entry


def _take(editor: OmissionEditor, view: ConversationView, entry: int) -> None:
    """Take out a step altogether, and what stands in its place."""
    editor.drop_step(entry)
    if entry in view.omissions.entries:
        editor.drop_lines(entry)


def _end(view: ConversationView, last: int) -> int:
    """The next message of the assistant behind the entry `last` that has all results of the messages before it."""
    lines, reached = view.outline.lines, last
    for entry, line in enumerate(lines):
        if entry > reached and line.role is Role.ASSISTANT:
            return entry
        answered = line.results if line.observation is None else ([line.observation],)
        reached = max([reached, *(entry for results in answered for entry in results)])
    return len(lines)


def _conversation_text(view: ConversationView, shown: Sequence[Message | None], steps: Sequence[int]) -> str:
    """What the summarizer reads of `steps`, and of the user's messages between them. `shown` is what the model sees."""
    covered, summarized = set(steps), view.omissions.summarized
    first = min(0 if summarized is None else summarized, steps[0])
    messages: list[Message] = []
    for entry, line in enumerate(view.outline.lines[first:], first):
        message = shown[entry]
        owner = entry if line.use is None else line.use.entry
        if message is None:
            continue
        if owner in covered:
            messages.append(message)
        elif line.is_user and entry < steps[-1]:
            said = "\n".join(text for _, text in texts(message))
            messages.append({"role": "user", "content": said[:MAX_USER_CHARS]})
    return write_out(messages)
