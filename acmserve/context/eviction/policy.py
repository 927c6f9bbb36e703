"""What a budget's policy takes out of a conversation, down to a target. Pure; no policy here calls a model."""

from __future__ import annotations

from dataclasses import replace

from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.eviction.cwl import EvictionOptions, plan_eviction
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.eviction.policies import ClearToolUses, plan_clear_tool_uses, plan_recency
from acmserve.context.session.budget import Budget
from acmserve.context.transcript.omissions import Omissions
from acmserve.context.transcript.token_counts import TokenCounts
from acmserve.errors import InvalidRequest

EPISODE_POLICIES = ("cwl", "pi-cwl")
MODEL_POLICIES = ("compact",)


def plan_policy(
    graph: EpisodeGraph,
    token_counts: TokenCounts,
    omissions: Omissions,
    budget: Budget,
    target: int,
    num_pending: int = 0,
    expects_act: bool = False,
    expects_end: bool = False,
    end: int | None = None,
) -> EvictionPlan:
    """Take out what the budget's policy takes until `target` tokens are shown, on top of `omissions`.

    For a plan that is carried out later: `num_pending` tool uses have no result yet and will have one then, so `keep`
    counts them; with `expects_act` another act may have started then, with `expects_end` the active one has ended
    (`eviction`).
    Policies that know no episodes take nothing from entry `end` on: an open branch, which is an active episode to the
    others. Raises `InvalidRequest` for a policy that calls a model.
    """
    if budget.policy in EPISODE_POLICIES:
        by_position = budget.policy == "pi-cwl"
        options = EvictionOptions(by_position, budget.bulk_tools, budget.intermediate_tools, expects_act, expects_end)
        return plan_eviction(graph, token_counts, omissions, target, options)
    if budget.policy == "recency":
        return plan_recency(graph.outline, token_counts, omissions, target, end)
    if budget.policy == "clear_tool_uses":
        keep = max(0, budget.keep - num_pending)
        clearing = ClearToolUses(None, None, keep, 0, budget.exclude_tools, budget.clear_tool_inputs)
        return replace(plan_clear_tool_uses(graph.outline, token_counts, omissions, clearing, end), target=target)
    raise InvalidRequest("budget.policy", f"{budget.policy} calls a model.", "Choose cwl or recency.")
