"""What of a conversation no eviction may touch, by name and in tokens, and which episodes are evicted altogether."""

from __future__ import annotations

from collections.abc import Iterable

from acmserve.context.episodes.episode import Episode
from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import Protected
from acmserve.context.transcript.omissions import Omissions
from acmserve.context.transcript.omitted_tokens import message_tokens, result_tokens
from acmserve.context.transcript.outline import TEXT, Use
from acmserve.context.transcript.parts import Role


def evicted_numbers(episodes: Iterable[Episode], omissions: Omissions) -> set[int]:
    """The numbers of those ended episodes that were removed altogether."""
    if not omissions:
        return set()
    return {episode.number for episode in episodes if is_evicted(episode, omissions)}


def is_evicted(episode: Episode, omissions: Omissions) -> bool:
    """Whether an ended episode was removed altogether. The call that started a marked one goes with the last level."""
    if not omissions:
        return False
    if episode.close_entry is not None:
        return omissions.has_lost(episode.uses[0])
    texts_gone = all(_has_lost_text(omissions, entry) for entry in episode.messages)
    return texts_gone and all(omissions.has_lost(use) for use in episode.uses)


def _has_lost_text(omissions: Omissions, entry: int) -> bool:
    kept = omissions.entries.get(entry)
    return kept.text if kept is not None else omissions.in_gone(entry)


def protected_tokens(view: ConversationView, num_shown: int) -> tuple[Protected, ...]:
    """What is left, by name. The numbers add up to `num_shown`.

    Messages are counted by their parts. Where the parts have more tokens than the prompt (a template drops some), the
    largest are told as less.
    """
    episodes, token_counts, num_all = view.episodes, view.token_counts, len(view.outline)
    start = num_all if episodes.prologue_end is None else episodes.prologue_end
    found = [Protected("prologue", token_counts.base_tokens + token_counts.between(0, start))]
    found.append(Protected("user turns", view.said_tokens(start)))
    active = episodes.active
    if active is not None:
        found.append(Protected(f"active: {active.label}", episode_tokens(view, active)))
    found.extend(
        Protected(f"needed: {episode.label}", episode_tokens(view, episode))
        for episode in episodes.live.values()
        if not is_evicted(episode, view.omissions)
    )
    rest = num_shown - sum(item.num_tokens for item in found)
    found.append(Protected("descriptions and the step that runs", rest))
    return largest_first(found, num_shown)


def said_and_rest(view: ConversationView, num_shown: int, rest: str) -> tuple[Protected, ...]:
    """What is left where no episode is known: what users and the system wrote, and the `rest` by that name."""
    num_said = view.token_counts.base_tokens + view.said_tokens()
    left = (Protected("system and user messages", num_said), Protected(rest, num_shown - num_said))
    return tuple(item for item in left if item.num_tokens)


def largest_first(found: Iterable[Protected], num_shown: int) -> tuple[Protected, ...]:
    """What is left, the largest first: none below zero, and together `num_shown` where that is not below zero."""
    left: list[Protected] = []
    num_over = sum(max(0, item.num_tokens) for item in found) - max(0, num_shown)
    for item in sorted(found, key=lambda item: (-item.num_tokens, item.what)):
        num_less = min(max(0, num_over), max(0, item.num_tokens))
        num_over -= num_less
        left.append(Protected(item.what, max(0, item.num_tokens) - num_less))
    return tuple(sorted((i for i in left if i.num_tokens), key=lambda item: (-item.num_tokens, item.what)))


def episode_tokens(view: ConversationView, episode: Episode) -> int:
    """Tokens shown of what an episode owns. A message counts with its calls where both are its own."""
    omissions, lines, sizes = view.omissions, view.outline.lines, view.token_counts.sizes
    total = sum(_use_tokens(view, use) for use in episode.uses if not omissions.has_lost(use))
    for entry in episode.messages:
        line, size = lines[entry], sizes[entry]
        kept = omissions.entries.get(entry)
        if line.role is not Role.ASSISTANT:
            total += 0 if omissions.in_gone(entry) else size.total
        elif kept is not None:
            total += message_tokens(line, size, kept, view.token_counts)
            total -= sum(size.calls[i] for i in range(len(size.calls)) if i not in kept.calls)
        elif not omissions.in_gone(entry):
            total += size.total - sum(size.calls)
        total += _observation_tokens(view, entry)
    return total


def _observation_tokens(view: ConversationView, entry: int) -> int:
    """Tokens shown of what answers a text. 0 where nothing does."""
    result, omissions = view.outline.lines[entry].observation, view.omissions
    if result is None or omissions.has_lost(Use(entry, TEXT)):
        return 0
    size, kept = view.token_counts.sizes[result], omissions.entries.get(entry)
    return size.total if kept is None else result_tokens(size, kept, TEXT, view.token_counts)


def _use_tokens(view: ConversationView, use: Use) -> int:
    kept = view.omissions.entries.get(use.entry)
    tokens = view.token_counts.sizes[use.entry].calls[use.number]
    for result in view.outline.lines[use.entry].results[use.number]:
        size = view.token_counts.sizes[result]
        tokens += size.total if kept is None else result_tokens(size, kept, use.number, view.token_counts)
    return tokens
