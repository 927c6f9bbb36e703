"""One view of a conversation: what it holds, what each message weighs, what is left out, and its episodes.

    outline       role, calls and results of each message       omissions   what is left out now
    token_counts  tokens of each message, by part               episodes    what depends on what

Policies, clearing edits and precompute all look at a conversation through a view. A view is a value, and asking it
changes nothing. The outline, the counts and the episodes behind it grow with the transcript, so a view holds until the
transcript goes on.

It does not know sessions or budgets. What a plan that is carried out later has to expect stands in `expected`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.transcript.omission_editor import OmissionEditor
from acmserve.context.transcript.omissions import EMPTY, Omissions
from acmserve.context.transcript.omitted_tokens import lasting_tokens, said_tokens, shown_tokens
from acmserve.context.transcript.outline import Outline, Use
from acmserve.context.transcript.token_counts import TokenCounts


@dataclass(frozen=True, slots=True)
class Expected:
    """What will be otherwise when a plan is carried out.

    `num_pending` tool calls will have their result. With `act_starts` another act may have started, and may depend on
    unannotated work. With `act_ends` the act that is active will have ended, and goes like those before it.
    """

    num_pending: int = 0
    act_starts: bool = False
    act_ends: bool = False


NOW = Expected()


@dataclass(frozen=True, slots=True)
class ConversationView:
    """`end` is the entry where an open branch begins: policies without episodes take nothing from there on.

    `running` is the entry of the step that runs, where that is not the last: behind it lies a branch that has ended.
    """

    outline: Outline
    token_counts: TokenCounts
    omissions: Omissions = EMPTY
    episodes: EpisodeGraph = field(default_factory=EpisodeGraph)
    end: int | None = None
    running: int | None = None
    expected: Expected = NOW

    def last_step(self) -> int:
        """The entry of the step that runs, 0 where there is none."""
        return self.outline.last_step() if self.running is None else self.running

    def unread(self) -> frozenset[Use]:
        """The calls and texts whose results no answer has read yet: they stand behind the step that runs."""
        return frozenset([line.use for line in self.outline.lines[self.last_step() :] if line.use is not None])

    def shown_tokens(self, start: int = 0) -> int:
        """Tokens that the model sees from entry `start` on. From 0 on with the base."""
        return shown_tokens(self.outline, self.token_counts, self.omissions, start)

    def lasting_tokens(self) -> int:
        """Tokens that hardly any eviction will take."""
        return lasting_tokens(self.outline, self.token_counts, self.omissions)

    def said_tokens(self, start: int = 0) -> int:
        """Tokens shown of what users and the system wrote, from entry `start` on. Without the base."""
        return said_tokens(self.outline, self.token_counts, self.omissions, start)

    def first_difference(self, after: Omissions) -> int:
        """The first entry that another choice of omissions shows otherwise.

        What is cleared of a call shows in its result, behind it.
        """
        before = self.omissions
        entries = [e for e in {*before.entries, *after.entries} if before.entries.get(e) != after.entries.get(e)]
        spans = {*before.gone} ^ {*after.gone}
        return min([*entries, *(start for start, _ in spans)], default=0)

    def editor(self) -> OmissionEditor:
        """A new editor, which leaves out more."""
        return OmissionEditor(self.outline, self.token_counts, self.omissions)

    def with_omissions(self, omissions: Omissions) -> ConversationView:
        """The same conversation with something else left out."""
        return self if omissions is self.omissions else replace(self, omissions=omissions)

    def expecting(self, num_pending: int = 0, *, act_starts: bool = False, act_ends: bool = False) -> ConversationView:
        """The view for a plan that is carried out at a later turn."""
        return replace(self, expected=Expected(num_pending, act_starts, act_ends))
