"""The policies `cwl` and `pi-cwl`: finished acts leave first, and an exploration leaves after the acts that used it.

    while too large:  candidates = ended episodes, not the prologue, all dependents fully evicted
                      target     = oldest act, else oldest expl            (policy `pi-cwl`: the oldest of both)
                      levels     = reasoning (expl only) -> bulk -> intermediate -> removal, measured after each

This is Algorithm 1 of CWL, the Context Window Lifecycle. The paper is "Beyond Compaction: Structured Context Eviction
for Long-Horizon Agents" (arXiv:2606.11213). An act whose effects are in the world goes before the exploration it used.
Unannotated work is an exploration on which every act that starts later may depend. User turns, system messages and what
has not ended are never touched. Nor is an episode with results that no answer has read, as where other calls stand
beside the one that ends it. The result of that one says nothing new.

Where no episode is marked, episodes are inferred from the kinds of the tools and from shell commands (`inferred.py`).
So they are in unannotated work behind the last mark, where the target cannot be met otherwise. What an inferred act
needs is a guess, so it gives way at last.

Descriptions of explorations go at a second level, the oldest first. The paper keeps them for ever, so that a thousand
of them can be more than any budget. They go only where all episodes are evicted and the target is still not met, and
only where that meets it.

A pass looks at every live episode once and then only at what it evicts. A counter of living dependents makes an
exploration a candidate the moment the last of them is gone, and heaps give the oldest. It calls no model, and the same
input gives the same plan. The algorithm always takes the oldest and so never leaves a choice among equals.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from acmserve.context.episodes.episode import Episode, Kind
from acmserve.context.episodes.inferred import infer_active, infer_episodes, without_needs
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.oldest_first.descriptions import drop_descriptions
from acmserve.context.eviction.plan import BudgetUnmet, EvictionPlan, EvictionStep, Level, finish_plan
from acmserve.context.eviction.policy import Option, OptionKind
from acmserve.context.eviction.protected import evicted_numbers, protected_tokens
from acmserve.context.transcript.omission_editor import OmissionEditor
from acmserve.context.transcript.omissions import Omissions
from acmserve.context.transcript.outline import TEXT, Line, Use
from acmserve.context.transcript.parts import Role
from acmserve.errors import InvalidRequest

BULK_TOOLS = frozenset({"grep", "glob", "find", "ls", "search", "list_files", "list_directory", "rg"})
INTERMEDIATE_TOOLS = frozenset({"read", "bash", "read_file", "cat", "view", "shell"})
ACT_TOOLS = frozenset({
    "edit", "edit_file", "multiedit", "notebookedit", "write", "write_file", "write_to_file", "create_file", "insert",
    "replace", "replace_in_file", "str_replace", "str_replace_editor", "str_replace_based_edit_tool", "update_file",
    "apply_patch", "patch", "move_file", "delete_file",
})  # fmt: skip
LEVELS = (Level.REASONING, Level.BULK, Level.INTERMEDIATE, Level.REMOVE)
LEVEL_OPTIONS = (
    Option("bulk_tools", OptionKind.TOOLS, BULK_TOOLS, "Tools whose results list much; they go first"),
    Option("intermediate_tools", OptionKind.TOOLS, INTERMEDIATE_TOOLS, "Tools that read or run; they go second"),
)


@dataclass(frozen=True, slots=True)
class Cwl:
    """Acts before explorations, the oldest first, level by level. Tools of neither set go with the rest."""

    summary: ClassVar[str] = "episodes, marked with `delimiter` or inferred, acts before what they depend on"
    options: ClassVar[tuple[Option, ...]] = (
        *LEVEL_OPTIONS,
        Option("act_tools", OptionKind.TOOLS, ACT_TOOLS, "Tools that change something, where no episode is marked"),
    )
    needs_episodes: ClassVar[bool] = True
    needs_model: ClassVar[bool] = False
    by_position: ClassVar[bool] = False

    bulk_tools: frozenset[str] = BULK_TOOLS
    intermediate_tools: frozenset[str] = INTERMEDIATE_TOOLS
    act_tools: frozenset[str] = ACT_TOOLS

    def __post_init__(self) -> None:
        both = self.bulk_tools & self.intermediate_tools
        if both and self.bulk_tools != BULK_TOOLS and self.intermediate_tools != INTERMEDIATE_TOOLS:
            raise InvalidRequest(
                "bulk_tools",
                f"{', '.join(sorted(both))} is named as an intermediate tool too.",
                "Name a tool in one of the two lists.",
            )

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        """Evict marked episodes, and inferred ones where none is marked, or where that is not enough.

        Descriptions go where all of them are not enough.
        """
        graph, num_marked = view.episodes, 0
        if graph.prologue_end is None:
            inferred = infer_episodes(view.outline, self.act_tools, view.end, view.running)
        else:
            plan = self.plan_episodes(view, target, with_descriptions=True)
            if plan.unmet is None or graph.active is None:
                return plan
            inferred, num_marked = infer_active(graph, self.act_tools, view.end, view.running), graph.active.number
            if inferred is graph:
                return plan
        plan = self.plan_episodes(replace(view, episodes=inferred), target)
        if plan.unmet is None:
            return plan
        free = without_needs(inferred, num_marked)
        return self.plan_episodes(replace(view, episodes=free), target, with_descriptions=True)

    def plan_episodes(self, view: ConversationView, target: int, *, with_descriptions: bool = False) -> EvictionPlan:
        """Algorithm 1 to the letter: the view's own episodes, level by level, until the target is met."""
        editor, lines = view.editor(), view.outline.lines
        steps: list[EvictionStep] = []
        candidates = Candidates(view, by_position=self.by_position)
        while editor.num_tokens > target and (episode := candidates.oldest()) is not None:
            for level in LEVELS:
                if level is Level.REASONING and episode.kind is Kind.ACT:
                    continue
                size, num_done = editor.num_tokens, editor.num_operations
                self._strip(editor, lines, episode, level)
                if editor.num_operations > num_done:
                    steps.append(EvictionStep(episode.label, level, size - editor.num_tokens))
                if editor.num_tokens <= target:
                    break
            else:
                candidates.evicted(episode)
        if with_descriptions and editor.num_tokens > target:
            steps += drop_descriptions(view, editor, target)
        unmet = None
        if editor.num_tokens > target:
            left = protected_tokens(view.with_omissions(editor.omissions()), editor.num_tokens)
            unmet = BudgetUnmet(editor.num_tokens - target, left)
        return finish_plan(view, editor, target, steps, unmet)

    def _strip(self, editor: OmissionEditor, lines: list[Line], episode: Episode, level: Level) -> None:
        """Take one level out of an episode. Nothing of another episode, and nothing twice."""
        if level is Level.REASONING:
            for entry in episode.messages:
                if lines[entry].role is Role.ASSISTANT and lines[entry].has_reasoning:
                    editor.strip_reasoning(entry)
        elif level is Level.REMOVE:
            editor.drop_calls(episode.uses)
            editor.drop_texts(episode.messages)
            if episode.note is not None and episode.close_entry is not None:
                editor.add_note(episode.close_entry, episode.note)
        else:
            names = self.bulk_tools if level is Level.BULK else self.intermediate_tools
            editor.drop_calls([use for use in episode.uses if lines[use.entry].names[use.number] in names])


@dataclass(frozen=True, slots=True)
class PiCwl(Cwl):
    """As `cwl`, but the oldest candidate of either type first (position instead of type)."""

    summary: ClassVar[str] = "the oldest episode"
    by_position: ClassVar[bool] = True


class Candidates:
    """The episodes that may be evicted now, the oldest first."""

    def __init__(self, view: ConversationView, *, by_position: bool) -> None:
        graph = view.episodes
        self._by_position = by_position
        self._live, active = graph.live, graph.active
        if view.expected.act_ends and active is not None and active.kind is Kind.ACT:
            self._live, active = {**graph.live, active.number: active}, None
        if view.omissions:
            gone = evicted_numbers(self._live.values(), view.omissions)
            self._live = {number: episode for number, episode in self._live.items() if number not in gone}
        acts, explorations, waiting = _by_kind(self._live)
        self._dependents: dict[int, int] = {}
        for act in (*acts, *([active] if active is not None else ())):
            for number in act.depends_on:
                self._dependents[number] = self._dependents.get(number, 0) + 1
        unread = _unread_numbers(view, self._live)
        self._live = {number: episode for number, episode in self._live.items() if number not in unread}
        self._waiting = [number for number in waiting if number in self._live]
        # Unannotated work waits for every later act, so the latest act that is left decides.
        self._acts = deque(act.number for act in acts)
        self._gone: set[int] = set()
        self._last_act = active.number if active is not None and active.kind is Kind.ACT else None
        if view.expected.act_starts:
            self._last_act = len(graph)
        self._act_heap = [number for number in self._acts if number in self._live]
        free = [number for number in explorations if number not in self._dependents and number in self._live]
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
        """The oldest is fully evicted. Explorations that only it kept are candidates now."""
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


def _unread_numbers(view: ConversationView, live: Mapping[int, Episode]) -> set[int]:
    """The numbers of ended episodes with results that no answer has read, besides that of the call that ended it."""
    unread, num_entries = view.unread(), len(view.outline)
    texts = {*range(view.last_step() + 1, num_entries), *(use.entry for use in unread if use.number == TEXT)}
    if not unread and not texts:
        return set()
    return {
        number
        for number, episode in live.items()
        if not unread.isdisjoint(episode.uses if episode.close_entry is None else episode.uses[:-1])
        or not texts.isdisjoint(episode.messages)
    }


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


def without_active(view: ConversationView) -> Omissions:
    """Show the active episode again: a rewound history may have opened one of which parts were taken out."""
    active, omissions = view.episodes.active, view.omissions
    if active is None or not omissions:
        return omissions
    entry, cut = active.start, omissions.entries.get(active.start)
    editor, uses = view.with_omissions(omissions.first(entry)).editor(), set(active.uses)
    for index in range(len(view.outline.lines[entry].names)):
        use = Use(entry, index)
        if use not in uses and omissions.has_lost(use):
            editor.drop_call(use)
    if entry not in active.messages and (omissions.is_gone(entry) or (cut is not None and cut.text)):
        editor.drop_text(entry)
    for note in cut.notes if cut is not None else ():
        editor.add_note(entry, note)
    return editor.omissions()
