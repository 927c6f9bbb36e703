"""Episodes and evictions as their routes show them. Reads only."""

from __future__ import annotations

from typing import Literal

from acmserve.context.episodes.episode import Episode
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.context_meter import ContextMeter
from acmserve.context.eviction.protected import episode_tokens, is_evicted
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.omissions import Omissions
from acmserve.server.budget.conversation_summary import summary_json
from acmserve.server.budget.enforcement import Evicted
from acmserve.server.budget.report import stages_json, steps_json, unmet_json
from acmserve.server.routes.schemas.budget import (
    EpisodeList,
    EpisodeView,
    EvictedEpisode,
    Eviction,
    NextTurns,
    StageView,
    SummaryCost,
    TurnCost,
    Unmet,
)


def episode_list(state: SessionState, meter: ContextMeter) -> EpisodeList:
    """Every episode of a session, evicted ones included. `meter` follows the state."""
    graph = EpisodeGraph((entry.message for entry in state.entries), state.observations)
    active = graph.active
    names = {number: name for name, (number, _) in graph.names.items()}
    episodes = [*graph.live.values(), *((active,) if active is not None else ())]
    return EpisodeList(
        data=[_episode(episode, graph, meter, state.omissions, names) for episode in episodes],
        prologue_end=graph.prologue_end,
    )


def _episode(
    episode: Episode, graph: EpisodeGraph, meter: ContextMeter, omissions: Omissions, names: dict[int, str]
) -> EpisodeView:
    view = ConversationView(graph.outline, meter.token_counts)
    num_tokens = episode_tokens(view, episode)
    num_shown = episode_tokens(view.with_omissions(omissions), episode)
    state: Literal["active", "ended", "stripped", "evicted"] = "active"
    if episode.is_closed:
        state = "evicted" if is_evicted(episode, omissions) else "ended"
        state = "stripped" if state == "ended" and num_shown < num_tokens else state
    return EpisodeView(
        number=episode.number,
        name=episode.name,
        type=episode.kind.value,
        state=state,
        start=episode.start,
        end=episode.end,
        depends_on=[names[number] for number in episode.depends_on],
        description=episode.description,
        num_tokens=num_tokens,
        num_tokens_shown=num_shown,
    )


def eviction_view(evicted: Evicted, meter: ContextMeter, before: Omissions, *, dry_run: bool) -> Eviction:
    """A plan, and what it costs the next turn: `exact` computes all behind the first change, `reuse` the new text."""
    plan, num_new = evicted.plan, evicted.plan.num_written
    if plan.first_entry is not None:
        num_new += sum(
            meter.token_counts.text_tokens(note)
            for entry, kept in plan.omissions.entries.items()
            for note in kept.notes
            if entry not in before.entries or note not in before.entries[entry].notes
        )
    unmet = unmet_json(plan.unmet)
    return Eviction(
        dry_run=dry_run,
        target=plan.target,
        tokens_before=plan.num_before,
        tokens_after=plan.num_after,
        evicted=[EvictedEpisode(**item) for item in steps_json(plan.steps)],
        first_message=plan.first_entry,
        next_turn=NextTurns(
            exact=TurnCost(recomputed_tokens=plan.num_behind, moved_tokens=0),
            reuse=TurnCost(recomputed_tokens=num_new, moved_tokens=max(0, plan.num_behind - num_new)),
        ),
        summary=None if evicted.summary is None else SummaryCost.model_validate(summary_json(evicted.summary)),
        stages=[StageView.model_validate(stage) for stage in stages_json(plan.stages)] or None,
        unmet=None if unmet is None else Unmet.model_validate(unmet),
    )
