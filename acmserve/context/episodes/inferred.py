"""Episodes of an agent that marks none: read off the kinds of its tools, and off its commands.

    entries   system user | grep | read | edit | bash | edit | user | read | read
              [ prologue ] [ expl      ] [act ] [expl] [act]        [expl] [active]

A step is a message of the assistant with its results. A step that calls a tool that changes something is an act. So is
one with a shell command that writes (`commands/shell_writes.py`), in a call or in a text that an observation answers.
Every other one explores, also one in which an editor only views, whatever its tool is. Neighbours of one kind are one
episode, up to `MAX_STEPS` of them, and a turn of the user divides them. The last step is active. What an act used is
not known. An act is taken to need what was explored since the act before it, or else what that one needed.

The same is done with work that is unannotated at the end of a transcript with marks (`infer_active`). An agent may mark
something once and then never again.

It is a guess, so it is made anew for each plan and kept nowhere. Such episodes have no description, and nothing of them
is left when they are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from acmserve.context.episodes.episode import Episode, Kind
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.transcript.outline import Line, Outline, Use
from acmserve.context.transcript.parts import Role

MAX_STEPS = 8


@dataclass(slots=True)
class _Stretch:
    """Steps of one kind. `end` is the entry behind the last of them."""

    kind: Kind
    start: int
    end: int
    messages: list[int] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    num_steps: int = 0


def infer_episodes(
    outline: Outline, act_tools: Collection[str], end: int | None = None, running: int | None = None
) -> EpisodeGraph:
    """A graph of what lies in front of entry `end`. Names of tools count without case.

    At `running` an episode begins, whatever stands in front.
    """
    stretches = _stretches(outline, act_tools, range(len(outline) if end is None else end), running)
    return EpisodeGraph.of(outline, _episodes(stretches, 0))


def infer_active(
    graph: EpisodeGraph, act_tools: Collection[str], end: int | None = None, running: int | None = None
) -> EpisodeGraph:
    """The same graph, with its unannotated work at the end taken apart. It is numbered on from the number of that work.

    What runs stays an exploration, as that work is: no act, so nothing older waits for it. Returns `graph` itself where
    a marked episode is active, or none.
    """
    active, outline = graph.active, graph.outline
    if active is None or active.name is not None:
        return graph
    entries = range(active.start, len(outline) if end is None else end)
    messages, uses = set(active.messages), set(active.uses)
    owned: list[_Stretch] = []
    for stretch in _stretches(outline, act_tools, entries, running):
        stretch.messages = [entry for entry in stretch.messages if entry in messages]
        stretch.uses = [use for use in stretch.uses if use in uses]
        if stretch.messages or stretch.uses:
            owned.append(stretch)
    if not owned:
        return graph
    apart = _episodes(owned, active.number)
    apart[-1] = replace(apart[-1], kind=Kind.EXPL, depends_on=())
    return EpisodeGraph.of(outline, [*graph.live.values(), *apart], graph.prologue_end)


def _episodes(stretches: Sequence[_Stretch], first: int) -> list[Episode]:
    """An episode for each stretch, numbered from `first` on."""
    episodes: list[Episode] = []
    needed: tuple[int, ...] = ()
    since: list[int] = []
    for number, stretch in enumerate(stretches, first):
        if stretch.kind is Kind.EXPL:
            since.append(number)
        else:
            needed, since = (tuple(since) or needed), []
        word = "exploration" if stretch.kind is Kind.EXPL else "act"
        episodes.append(
            Episode(
                number=number,
                name=f"{word} from message {stretch.start}",
                kind=stretch.kind,
                start=stretch.start,
                depends_on=needed if stretch.kind is Kind.ACT else (),
                end=stretch.end,
                messages=tuple(stretch.messages),
                uses=tuple(stretch.uses),
            )
        )
    return episodes


def without_needs(graph: EpisodeGraph, first: int = 0) -> EpisodeGraph:
    """The same episodes, none of which needs another from number `first` on."""
    active = [graph.active] if graph.active is not None else []
    episodes = [replace(one, depends_on=()) if one.number >= first else one for one in (*graph.live.values(), *active)]
    return EpisodeGraph.of(graph.outline, episodes, graph.prologue_end)


def _stretches(outline: Outline, act_tools: Collection[str], entries: range, running: int | None) -> list[_Stretch]:
    """The stretches of some entries in order. The last step is one of its own."""
    acting = {name.lower() for name in act_tools}
    found: list[_Stretch] = []
    is_divided = True
    last = max((entry for entry in entries if outline.lines[entry].role is Role.ASSISTANT), default=-1)
    for entry in entries:
        line = outline.lines[entry]
        if line.is_user:
            is_divided = True
        elif line.role is Role.RESULT and found:
            found[-1].end = entry + 1
            if line.use is None:
                found[-1].messages.append(entry)
        elif line.role is Role.ASSISTANT:
            kind = Kind.ACT if _acts(line, acting) else Kind.EXPL
            is_own = entry in (last, running)
            is_new = is_divided or is_own or found[-1].kind is not kind or found[-1].num_steps == MAX_STEPS
            if is_new:
                found.append(_Stretch(kind, entry, entry + 1))
            is_divided = False
            found[-1].end = entry + 1
            found[-1].messages.append(entry)
            found[-1].uses += [Use(entry, number) for number in range(len(line.names))]
            found[-1].num_steps += 1
    return found


def _acts(line: Line, acting: Collection[str]) -> bool:
    """Whether a step changes something: by a command that was run, or by a tool that is called for more than a view."""
    effect = line.effect
    if effect.writes:
        return bool(line.names) or line.observation is not None
    return any(name.lower() in acting and number not in effect.viewed for number, name in enumerate(line.names))
