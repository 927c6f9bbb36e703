"""What of a conversation no eviction may touch, by name and in tokens; and which episodes are evicted altogether."""

from __future__ import annotations

from acmserve.context.episodes.episode import Episode
from acmserve.context.episodes.graph import EpisodeGraph
from acmserve.context.eviction.plan import Protected
from acmserve.context.transcript.omissions import Omissions
from acmserve.context.transcript.omitted_tokens import message_tokens, result_tokens
from acmserve.context.transcript.outline import Outline, Role, Use
from acmserve.context.transcript.token_counts import TokenCounts


def is_evicted(episode: Episode, outline: Outline, omissions: Omissions) -> bool:
    """Whether an ended episode was removed altogether. An episode's first call, or text, goes with the last level."""
    if not omissions:
        return False
    if episode.name is not None:
        return omissions.has_lost(episode.uses[0])
    texts_gone = all(_has_lost_text(omissions, entry) for entry in episode.messages)
    return texts_gone and all(omissions.has_lost(use) for use in episode.uses)


def _has_lost_text(omissions: Omissions, entry: int) -> bool:
    kept = omissions.entries.get(entry)
    return kept.text if kept is not None else omissions.in_gone(entry)


def protected_tokens(
    graph: EpisodeGraph, token_counts: TokenCounts, omissions: Omissions, num_shown: int
) -> tuple[Protected, ...]:
    """What is left, by name; the numbers add up to `num_shown`."""
    outline, start = graph.outline, graph.prologue_end
    start = len(outline) if start is None else start
    found = [Protected("prologue", token_counts.base_tokens + token_counts.between(0, start))]
    behind = token_counts.between(start, len(outline)) - token_counts.omittable_between(start, len(outline))
    found.append(Protected("user turns", behind))
    active = graph.active
    if active is not None:
        found.append(Protected(f"active: {active.label}", episode_tokens(active, outline, token_counts, omissions)))
    found.extend(
        Protected(f"needed: {episode.label}", episode_tokens(episode, outline, token_counts, omissions))
        for episode in graph.live.values()
        if not is_evicted(episode, outline, omissions)
    )
    rest = num_shown - sum(item.num_tokens for item in found)
    found.append(Protected("descriptions and the step that runs", rest))
    return tuple(sorted((item for item in found if item.num_tokens), key=lambda item: (-item.num_tokens, item.what)))


def episode_tokens(episode: Episode, outline: Outline, token_counts: TokenCounts, omissions: Omissions) -> int:
    """Tokens shown of what an episode owns. A message counts with its calls where both are its own."""
    total = sum(
        _use_tokens(use, outline, token_counts, omissions) for use in episode.uses if not omissions.has_lost(use)
    )
    for entry in episode.messages:
        line, size = outline.lines[entry], token_counts.size(entry)
        kept = omissions.entries.get(entry)
        if line.role is not Role.ASSISTANT:
            total += 0 if omissions.in_gone(entry) else size.total
        elif kept is not None:
            total += message_tokens(line, size, kept, token_counts)
            total -= sum(size.calls[i] for i in range(len(size.calls)) if i not in kept.calls)
        elif not omissions.in_gone(entry):
            total += size.total - sum(size.calls)
    return total


def _use_tokens(use: Use, outline: Outline, token_counts: TokenCounts, omissions: Omissions) -> int:
    kept = omissions.entries.get(use.entry)
    result = outline.result(use)
    tokens = token_counts.size(use.entry).calls[use.number]
    if result is None:
        return tokens
    size = token_counts.size(result)
    return tokens + (size.total if kept is None else result_tokens(size, kept, use.number, token_counts))
