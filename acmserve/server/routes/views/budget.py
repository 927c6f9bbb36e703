"""Episodes and evictions as their routes show them. Reads only."""

from __future__ import annotations

from typing import Literal

from acmserve.context.episodes.episode import Episode
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.eviction.context_meter import Account
from acmserve.context.eviction.protected import episode_tokens, is_evicted
from acmserve.context.session.state import SessionState
from acmserve.context.transcript.omissions import EMPTY, Shed
from acmserve.server.budget.budgets import told_steps, told_unmet
from acmserve.server.budget.enforcement import Evicted, told_summary
from acmserve.server.routes.schemas.budget import (
    EpisodeList,
    EpisodeView,
    EvictedEpisode,
    Eviction,
    NextTurns,
    SummaryCost,
    TurnCost,
    Unmet,
)


def episode_list(state: SessionState, account: Account) -> EpisodeList:
    """Every episode of a session, evicted ones included. `account` follows the state."""
    graph = EpisodeGraph(entry.message for entry in state.entries)
    active = graph.active
    names = {number: name for name, (number, _) in graph.names.items()}
    episodes = [*graph.live.values(), *((active,) if active is not None else ())]
    return EpisodeList(
        data=[_episode(episode, graph, account, state.shed, names) for episode in episodes],
        prologue_end=graph.prologue_end,
    )


def _episode(episode: Episode, graph: EpisodeGraph, account: Account, shed: Shed, names: dict[int, str]) -> EpisodeView:
    num_tokens = episode_tokens(episode, graph.outline, account.ledger, EMPTY)
    num_shown = episode_tokens(episode, graph.outline, account.ledger, shed)
    state: Literal["active", "ended", "stripped", "evicted"] = "active"
    if episode.is_closed:
        state = "evicted" if is_evicted(episode, graph.outline, shed) else "ended"
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


def eviction_view(evicted: Evicted, account: Account, before: Shed, *, dry_run: bool) -> Eviction:
    """A plan, and what it costs the next turn: `exact` computes all behind the first change, `reuse` the new text."""
    plan, num_new = evicted.plan, evicted.plan.num_written
    if plan.first_entry is not None:
        num_new += sum(
            account.ledger.text_tokens(note)
            for entry, kept in plan.shed.entries.items()
            for note in kept.notes
            if entry not in before.entries or note not in before.entries[entry].notes
        )
    unmet = told_unmet(plan.unmet)
    return Eviction(
        dry_run=dry_run,
        target=plan.target,
        tokens_before=plan.num_before,
        tokens_after=plan.num_after,
        evicted=[EvictedEpisode(**item) for item in told_steps(plan.steps)],
        first_message=plan.first_entry,
        next_turn=NextTurns(
            exact=TurnCost(recomputed_tokens=plan.num_behind, moved_tokens=0),
            reuse=TurnCost(recomputed_tokens=num_new, moved_tokens=max(0, plan.num_behind - num_new)),
        ),
        summary=None if evicted.summary is None else SummaryCost.model_validate(told_summary(evicted.summary)),
        unmet=None if unmet is None else Unmet.model_validate(unmet),
    )
