"""The running meter of one session: its episodes, what each message weighs, and what the next prompt will.

    state of turn n      [ e0 e1 e2 e3 e4 ]              episodes, counts: read once
    state of turn n + 1  [ e0 e1 e2'e3 e4 ][ e5 e6 ]     e2 recounted (a fold), e5 and e6 read
    a rewound history    [ e0 e1 e2'][ x3 ]              counts rewound, episodes built anew, x3 read

A memory that can be thrown away: `follow` builds it from any state. It is brought up to date from the state before at
the cost of what is new. What the client resends is compared, not counted again.

What a prompt weighs is known when it was rendered (`take_rendered`) or served. Between two such prompts messages are
counted part by part. `calibrate` takes what a prompt had in truth and learns three things. One is the tokens beside the
messages (`base`). The next is by how much a new message is more than its parts at worst. `reserve` sets that aside for
the messages that came since. The last is what media weigh. While messages are only appended, `may_exceed` needs no
rendering. Behind any other change nothing is certain until the prompt is rendered.

It changes no state and calls no model: a policy that wants one plans in two steps (`compaction`, `summarized`). One
thread at a time.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev
from typing import Any

from acmserve.context.accounting.known_prompt import Counted, KnownPrompt
from acmserve.context.episodes.delimiter import Scope
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction import registry
from acmserve.context.eviction.clear_thinking import only_cleared
from acmserve.context.eviction.clearing_edits import VendorEdit, applied_edits, plan_edits
from acmserve.context.eviction.compact import Compaction, plan_compaction, predicted_plan, summary_plan
from acmserve.context.eviction.cwl import without_active
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, Level, Protected
from acmserve.context.eviction.planned_eviction import TurnStats
from acmserve.context.eviction.protected import evicted_numbers
from acmserve.context.session.branches.branch import hide_closed, view_bounds
from acmserve.context.session.budget import Budget
from acmserve.context.session.known_entries import compare_entries
from acmserve.context.session.low_watermark import Measured, cheapest_low_watermark
from acmserve.context.session.render import render_whole
from acmserve.context.session.state import SessionState, TranscriptEntry
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.omissions import EMPTY, Omissions
from acmserve.context.transcript.parts import read_parts
from acmserve.context.transcript.template_rules import TAKES_ALL, Overheads, Reasoning, TemplateRules
from acmserve.context.transcript.token_counts import EntrySize, TokenCounts, counter
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.errors import IntegrityError

_NUM_GROWTHS = 32
_NUM_PIECES = 128
# Before anything was served: tokens that a message may have beyond its parts, and the share by which the tools' count
# may be wrong.
_FIRST_SEAM = 2.0
_FIRST_BASE_SHARE = 0.1
_FIRST_GROWTH_PART = 0.05


class ContextMeter:
    """`scope` is what calls of `delimiter` in the running step have declared. None when the transcript says it all."""

    def __init__(
        self, tokenizer: Tokenizer, overheads: Overheads | None = None, rules: TemplateRules = TAKES_ALL
    ) -> None:
        """`overheads` and `rules` are those of the served template."""
        weights = overheads or Overheads()
        shows = rules.reasoning is not Reasoning.DROPPED
        self.graph = EpisodeGraph()
        self.token_counts = TokenCounts(
            counter(tokenizer), weights.message, weights.call, 0, weights.result, shows_reasoning=shows
        )
        self.omissions: Omissions = EMPTY
        self.scope: Scope | None = None
        self.turn_stats = TurnStats()
        self._entries: tuple[TranscriptEntry, ...] = ()
        self._whole: list[Message] = []
        self._bounds: tuple[int, int | None] = (0, None)
        self._correction = 0
        self._seam = _FIRST_SEAM
        self._served: Counted | None = None
        self._known = KnownPrompt()
        self._num_written = 0
        self._growths: deque[int] = deque(maxlen=_NUM_GROWTHS)
        self._pieces: deque[int] = deque(maxlen=_NUM_PIECES)

    @property
    def view(self) -> ConversationView:
        """The conversation as it stands, for policies and for whatever else looks at it."""
        return ConversationView(self.graph.outline, self.token_counts, self.omissions, self.graph, *self._bounds)

    @property
    def num_tokens(self) -> int:
        """Tokens of the next prompt, as far as they are counted."""
        num_saved = self.token_counts.remembered(self.omissions)
        if num_saved is None:
            num_saved = self.token_counts.num_tokens - self.view.shown_tokens()
            self.token_counts.remember(self.omissions, num_saved)
        return self.token_counts.num_tokens - num_saved

    @property
    def reserve(self) -> int:
        """Tokens that the next prompt may have besides."""
        if self.is_rendered:
            return math.ceil(self._known.drift)
        if self._served is None:
            num_shown = len(self._entries) - sum(end - start for start, end in self.omissions.gone)
            return math.ceil(self._seam * num_shown + _FIRST_BASE_SHARE * self.token_counts.base_tokens)
        return math.ceil(self._seam * max(1, len(self._entries) - self._served.num_entries))

    @property
    def is_rendered(self) -> bool:
        """Whether the very prompt that is next was rendered, and so its tokens are known."""
        return self._known.rendered(len(self._entries)) is not None

    def may_exceed(self, budget: Budget) -> bool:
        """Whether the next prompt has to be rendered to know that it keeps to the budget."""
        num_known, num_all = self._known.before(len(self._entries)), len(self._entries)
        if num_known is None or self.token_counts.has_unknown_media(num_known):
            return True
        margin = self._known.margin(self.token_counts.between(num_known, num_all), num_all - num_known)
        return self.num_tokens + margin > budget.max_tokens

    def take_rendered(self, num_rendered: int, media: Sequence[bytes] = (), sizes: Sequence[EntrySize] = ()) -> None:
        """The prompt of the state as it is has so many tokens as the template writes it, and these media besides.

        `sizes` are those of all messages of the whole transcript. Without them the parts keep theirs.
        """
        if len(sizes) == len(self.token_counts):
            self.token_counts.correct(sizes)
        self._correct(num_rendered + self.token_counts.media.weight(media) - self.num_tokens)
        self._known.last = Counted(self.num_tokens, len(self._entries), self._known.version, num_rendered, tuple(media))

    def _correct(self, error: int) -> None:
        self._correction += error
        self.token_counts.base_tokens += error

    @property
    def num_unknown_media(self) -> int:
        """How many media of the rendered prompt weigh what somebody guessed."""
        known = self._known.rendered(len(self._entries))
        return 0 if known is None else self.token_counts.media.num_unknown(known.media)

    def copied(self) -> ContextMeter:
        """A meter that knows the same, so that this one learns nothing of what is only counted."""
        shared = (*self._entries, *self._whole, self.omissions)
        return copy.deepcopy(self, {id(each): each for each in shared})

    def follow(self, state: SessionState, *, keep_active: bool = True) -> SessionState:
        """Bring the meter to `state`. Returns the state, in which an episode that a rewind has opened again is whole.

        `keep_active` is for policies that know no episodes: then the state is returned as it is.
        """
        whole = render_whole(state)
        num_same, changed = compare_entries((self._entries, self._whole), (state.entries, whole))
        for entry in changed:
            self.token_counts.recount(entry, whole[entry])
            self.graph.outline.reread(entry, state.entries[entry].message)
        is_rewound = num_same < len(self._entries)
        if is_rewound:
            self.token_counts.rewind(num_same)
            if self._served is not None:
                self._served = replace(self._served, num_entries=min(num_same, self._served.num_entries))
            self._num_written = self.token_counts.between(0, num_same)
        if is_rewound or (self.graph.num_forgotten and state.omissions != self.omissions):
            self.graph = EpisodeGraph([entry.message for entry in state.entries[:num_same]], state.observations)
        if is_rewound and keep_active:
            omissions = without_active(self.view.with_omissions(state.omissions))
            state = replace(state, omissions=hide_closed(omissions, state.branches))
        if is_rewound or changed or num_same < len(state.entries):
            self.scope = None
        if is_rewound or changed:
            self._known.change()
        self._read(state.entries[num_same:], whole[num_same:])
        self._entries, self._whole = state.entries, whole
        self._bounds = view_bounds(state.branches, len(whole), self.graph.outline)
        self._take(state.omissions)
        return state

    def _read(self, new: Sequence[TranscriptEntry], shown: list[Message]) -> None:
        """Read new messages, once where they are shown as they were written."""
        observations = {index for index, entry in enumerate(new) if entry.is_observation}
        parts = read_parts((entry.message for entry in new), observations)
        is_same = all(entry.message is message for entry, message in zip(new, shown, strict=True))
        self.graph.extend_read(parts)
        self.token_counts.extend_read(parts if is_same else read_parts(shown, observations))

    def expect(self, num_overhead: int) -> None:
        """The next prompt has about so many tokens beside the messages: the tools, the words of a preset."""
        base = num_overhead + self._correction
        if base != self.token_counts.base_tokens:
            self.token_counts.base_tokens = base
            self._known.change()

    def counted(self) -> Counted:
        """The prompt that is rendered from the state now, for `calibrate` when it was served."""
        known = self._known.rendered(len(self._entries))
        return known or Counted(self.num_tokens, len(self._entries), self._known.version)

    def calibrate(self, counted: Counted, num_served: int) -> None:
        """Take in how many tokens a prompt had in truth. Prompts of a history that is no more are passed over."""
        if counted.num_entries > len(self._entries):
            return
        error = num_served - counted.num_tokens
        media, before = self.token_counts.media, self.token_counts.media.weight(counted.media)
        self._known.serve(counted, num_served, is_guess=media.num_unknown(counted.media) > 0)
        if counted.num_rendered is not None:
            self.token_counts.learn_media(counted.media, num_served - counted.num_rendered)
        error -= media.weight(counted.media) - before
        written = self.token_counts.between(0, counted.num_entries)
        if self._served is not None:
            self._seam = max(error / max(1, counted.num_entries - self._served.num_entries), self._seam * 0.9, 1.0)
            if written > self._num_written:
                self._growths.append(written - self._num_written)
        self._correct(error)
        self._served, self._num_written = counted, written

    def measure(self, budget: Budget, prefill_rate: float, move_rate: float | None) -> Measured:
        """What `auto` needs: how this session grows and is evicted, and the rates of its engine in tokens a second."""
        growth = fmean(self._growths) if self._growths else max(1.0, budget.max_tokens * _FIRST_GROWTH_PART)
        return Measured(
            growth=growth,
            prefill_rate=prefill_rate,
            move_rate=move_rate,
            protected=max(0, self.token_counts.base_tokens + self.token_counts.between(0, self.graph.beginning)),
            growth_variation=pstdev(self._growths) / growth if len(self._growths) > 1 else 0.0,
            piece=fmean(self._pieces) if self._pieces else None,
            piece_variation=pstdev(self._pieces) / fmean(self._pieces) if len(self._pieces) > 1 else 0.0,
        )

    def exceeds(self, budget: Budget) -> bool:
        """Whether the next prompt may be larger than the budget."""
        return self.num_tokens + self.reserve > budget.max_tokens

    def watermark(self, budget: Budget, measured: Measured) -> int:
        """Where an eviction stops: low enough that what is set aside still fits into the budget."""
        low = (
            cheapest_low_watermark(budget.max_tokens, measured)
            if budget.low_watermark is None
            else budget.low_watermark
        )
        return max(0, min(low, budget.max_tokens - self.reserve))

    def plan(self, budget: Budget, measured: Measured) -> EvictionPlan:
        """Evict down to the low watermark, or else to the budget. `unmet` where even that cannot be met. Pure."""
        policy, target = registry.policy_of(budget), self.watermark(budget, measured)
        plan = self.judge(policy.plan(self.view, target), budget)
        if plan.unmet is None or target >= budget.max_tokens - self.reserve:
            return plan
        again = self.judge(policy.plan(self.view, budget.max_tokens - self.reserve), budget)
        return again if again.unmet is None else plan

    def judge(self, plan: EvictionPlan, budget: Budget, reason: str = "") -> EvictionPlan:
        """The plan with `unmet` where `max_tokens` is not met after it. `reason`: why nothing could be taken."""
        num_over = plan.num_after + self.reserve - budget.max_tokens
        if num_over <= 0:
            return replace(plan, unmet=None)
        left = plan.unmet.protected if plan.unmet is not None else (Protected("what the policy keeps", plan.num_after),)
        return replace(plan, unmet=BudgetUnmet(num_over, left, reason))

    def compaction(self, target: int, max_summary_tokens: int) -> Compaction | None:
        """What is to be summarized so that `target` tokens are left. None where nothing is worth it. Pure."""
        return plan_compaction(self.view, self._whole, target, max_summary_tokens)

    def before(self, end: int, omissions: Omissions) -> int:
        """Tokens of a prompt that ends in front of the entry `end`, with this left out."""
        view = self.view.with_omissions(omissions)
        return view.shown_tokens() - view.shown_tokens(end)

    def summarized(self, compaction: Compaction, summary: str | None) -> EvictionPlan:
        """The plan of a compaction. Without a summary what the longest one would give, for showing only. Pure."""
        view = self.view
        return predicted_plan(compaction, view) if summary is None else summary_plan(compaction, view, summary)

    def edit(self, edits: Sequence[VendorEdit], state: SessionState) -> SessionState:
        """The state, which the meter follows, after the clearing edits of a request."""
        omissions = plan_edits(self.view, edits)
        if omissions is self.omissions:
            return state
        self._take(omissions)
        return replace(state, omissions=omissions)

    def applied(self) -> list[dict[str, Any]]:
        """The vendor's `applied_edits`: all that clearing edits took out and that is still there otherwise."""
        view = self.view
        return applied_edits(view.with_omissions(only_cleared(view.outline, view.omissions)))

    def carry_out(self, plan: EvictionPlan, state: SessionState) -> SessionState:
        """The state, which the meter follows, after a plan."""
        pieces = (step for step in plan.steps if step.level is not Level.SUMMARIZE)
        self._pieces.extend(step.num_tokens for step in pieces if step.num_tokens > 0)
        self._take(plan.omissions)
        return replace(state, omissions=plan.omissions)

    def _take(self, omissions: Omissions) -> None:
        if omissions is not self.omissions:
            if omissions != self.omissions:
                self._known.change()
            self.omissions = omissions
            self.graph.forget(evicted_numbers(self.graph.live.values(), omissions))

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when episodes, counts and transcript do not agree."""
        self.graph.check_integrity()
        self.token_counts.check_integrity()
        self.omissions.check_integrity()
        sizes = (len(self._entries), len(self._whole), self.graph.num_entries, len(self.token_counts))
        if len(set(sizes)) != 1:
            raise IntegrityError(
                f"meter: {sizes[0]} entries, {sizes[1]} rendered, {sizes[2]} in the graph, {sizes[3]} counted"
            )
        num_shown = self.view.shown_tokens()
        if num_shown != self.num_tokens:
            raise IntegrityError(f"meter: {self.num_tokens} tokens remembered, {num_shown} counted")
