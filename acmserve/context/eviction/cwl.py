"""Which episodes leave when a conversation is over its budget: Algorithm 1 of 002, decided here, carried out elsewhere.

    while too large:  candidates = ended episodes, not the prologue, all dependents fully evicted
                      target     = oldest act, else oldest expl            (policy `pi-cwl`: the oldest of both)
                      levels     = reasoning (expl only) -> bulk -> intermediate -> removal, measured after each

An act whose effects are in the world goes before the exploration it used. Unannotated work is an exploration on which
every act that starts later may depend. User turns, system messages and what has not ended are never touched.

A pass looks at every live episode once and then only at what it evicts: a counter of living dependents makes an
exploration a candidate the moment the last of them is gone, and heaps give the oldest. It calls no model, and the same
input gives the same plan. The algorithm always takes the oldest and so never leaves a choice among equals.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from acmserve.context.episodes.episode import Episode, Kind
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, EvictionStep, Level
from acmserve.context.eviction.protected import is_evicted, protected_tokens
from acmserve.context.session.budget import BULK_TOOLS, INTERMEDIATE_TOOLS
from acmserve.context.transcript.omission_editor import OmissionEditor
from acmserve.context.transcript.omissions import Omissions
from acmserve.context.transcript.omitted_tokens import shown_tokens
from acmserve.context.transcript.outline import Outline, Role, Use
from acmserve.context.transcript.token_counts import TokenCounts

LEVELS = (Level.REASONING, Level.BULK, Level.INTERMEDIATE, Level.REMOVE)


@dataclass(frozen=True, slots=True)
class EvictionOptions:
    """`by_position` takes the oldest candidate of either type (`pi-cwl`). Tools of neither set go with the rest.

    `expects_act`: another act will have started when the plan is carried out, and may depend on unannotated work.
    `expects_end`: the act that is active will have ended, and goes like those before it.
    """

    by_position: bool = False
    bulk_tools: frozenset[str] = BULK_TOOLS
    intermediate_tools: frozenset[str] = INTERMEDIATE_TOOLS
    expects_act: bool = False
    expects_end: bool = False


DEFAULT_OPTIONS = EvictionOptions()


def plan_eviction(
    graph: EpisodeGraph,
    token_counts: TokenCounts,
    omissions: Omissions,
    target: int,
    options: EvictionOptions = DEFAULT_OPTIONS,
) -> EvictionPlan:
    """Evict until at most `target` tokens are shown. Graph and ledger have read the same messages."""
    editor = OmissionEditor(graph.outline, token_counts, omissions)
    before, steps = editor.num_tokens, []
    candidates = Candidates(graph, omissions, options)
    while editor.num_tokens > target and (episode := candidates.oldest()) is not None:
        for level in LEVELS:
            if level is Level.REASONING and episode.kind is Kind.ACT:
                continue
            size, num_done = editor.num_tokens, editor.num_operations
            strip(editor, graph.outline, episode, level, options)
            if editor.num_operations > num_done:
                steps.append(EvictionStep(episode.label, level, size - editor.num_tokens))
            if editor.num_tokens <= target:
                break
        else:
            candidates.evicted(episode)
    new = editor.omissions()
    unmet = None
    if editor.num_tokens > target:
        unmet = BudgetUnmet(editor.num_tokens - target, protected_tokens(graph, token_counts, new, editor.num_tokens))
    return finish_plan(editor, new, graph.outline, token_counts, target, before, steps, unmet)


def finish_plan(
    editor: OmissionEditor,
    new: Omissions,
    outline: Outline,
    token_counts: TokenCounts,
    target: int,
    before: int,
    steps: Iterable[EvictionStep],
    unmet: BudgetUnmet | None = None,
) -> EvictionPlan:
    """The plan of what an editor did, which made `new`."""
    first = editor.first_entry
    return EvictionPlan(
        omissions=new,
        target=target,
        num_before=before,
        num_after=editor.num_tokens,
        steps=tuple(steps),
        unmet=unmet,
        first_entry=first,
        num_behind=0 if first is None else shown_tokens(outline, token_counts, new, first),
        cleared_tool_uses=editor.num_uses,
        cleared_thinking_turns=editor.num_reasoning,
    )


def strip(editor: OmissionEditor, outline: Outline, episode: Episode, level: Level, options: EvictionOptions) -> None:
    """Take one level out of an episode; nothing of another episode, and nothing twice."""
    if level is Level.REASONING:
        for entry in episode.messages:
            if outline.lines[entry].role is Role.ASSISTANT:
                editor.strip_reasoning(entry)
    elif level is Level.REMOVE:
        for use in episode.uses:
            editor.drop_call(use)
        for entry in episode.messages:
            editor.drop_text(entry)
        if episode.note is not None and episode.close_entry is not None:
            editor.add_note(episode.close_entry, episode.note)
    else:
        names = options.bulk_tools if level is Level.BULK else options.intermediate_tools
        for use in episode.uses:
            if outline.name(use) in names:
                editor.drop_call(use)


class Candidates:
    """The episodes that may be evicted now, the oldest first."""

    def __init__(self, graph: EpisodeGraph, omissions: Omissions, options: EvictionOptions) -> None:
        self._by_position = options.by_position
        self._live, active = graph.live, graph.active
        if options.expects_end and active is not None and active.kind is Kind.ACT:
            self._live, active = {**graph.live, active.number: active}, None
        if omissions:
            self._live = {n: e for n, e in self._live.items() if not is_evicted(e, graph.outline, omissions)}
        acts, explorations, self._waiting = _by_kind(self._live)
        self._dependents: dict[int, int] = {}
        for act in (*acts, *([active] if active is not None else ())):
            for number in act.depends_on:
                self._dependents[number] = self._dependents.get(number, 0) + 1
        # Unannotated work waits for every later act, so the latest act that is left decides.
        self._acts = deque(act.number for act in acts)
        self._gone: set[int] = set()
        self._last_act = active.number if active is not None and active.kind is Kind.ACT else None
        if options.expects_act:
            self._last_act = len(graph)
        self._act_heap = list(self._acts)
        free = [number for number in explorations if number not in self._dependents]
        self._expl_heap = self._act_heap if self._by_position else free
        if self._by_position:
            self._act_heap += free
        heapq.heapify(self._expl_heap)
        self._release_unannotated()

    def oldest(self) -> Episode | None:
        """The next to evict: it stays the next until it is `evicted`."""
        heap = self._act_heap or self._expl_heap
        return self._live[heap[0]] if heap else None

    def evicted(self, episode: Episode) -> None:
        """The oldest is fully evicted; explorations that only it kept are candidates now."""
        heapq.heappop(self._act_heap or self._expl_heap)
        self._gone.add(episode.number)
        if episode.kind is Kind.EXPL:
            return
        for number in episode.depends_on:
            self._dependents[number] -= 1
            if not self._dependents[number] and number in self._live and number not in self._gone:
                heapq.heappush(self._expl_heap, number)
        self._release_unannotated()

    def _release_unannotated(self) -> None:
        while self._acts and self._acts[-1] in self._gone:
            self._acts.pop()
        last = max(self._acts[-1] if self._acts else -1, -1 if self._last_act is None else self._last_act)
        while self._waiting and self._waiting[-1] > last:
            heapq.heappush(self._expl_heap, self._waiting.pop())


def _by_kind(live: Mapping[int, Episode]) -> tuple[list[Episode], list[int], list[int]]:
    """Acts, annotated explorations, and unannotated work, in order. One look at each: there may be ten thousand."""
    acts: list[Episode] = []
    explorations: list[int] = []
    waiting: list[int] = []
    for number, episode in live.items():
        if episode.kind is Kind.ACT:
            acts.append(episode)
        elif episode.name is None:
            waiting.append(number)
        else:
            explorations.append(number)
    return acts, explorations, waiting


def without_active(graph: EpisodeGraph, token_counts: TokenCounts, omissions: Omissions) -> Omissions:
    """Show the active episode again: a rewound history may have opened one of which parts were taken out."""
    active = graph.active
    if active is None or not omissions:
        return omissions
    entry, cut = active.start, omissions.entries.get(active.start)
    editor = OmissionEditor(graph.outline, token_counts, omissions.first(entry))
    for index in range(len(graph.outline.lines[entry].names)):
        use = Use(entry, index)
        if use not in active.uses and omissions.has_lost(use):
            editor.drop_call(use)
    if entry not in active.messages and (omissions.is_gone(entry) or (cut is not None and cut.text)):
        editor.drop_text(entry)
    for note in cut.notes if cut is not None else ():
        editor.add_note(entry, note)
    return editor.omissions()
