"""Tool calls that repeat an earlier one of the session: was the earlier result still there, or had a policy taken it?

    prompt 3   [read a][.......][read b][.......]      the answer calls `read a`: a repeat, its result is still shown
    prompt 9   [read b][.......][grep c][.......]      the answer calls `read a`: a re-exploration

A repeat has the name and the arguments of an earlier call whose result the session had. It is a re-exploration where
the policy has left no result of such a call in the prompt that it answers. The calls of `delimiter` are none.

A recording answers as it was recorded, to prompts that showed everything. So the counts say which of its own repeats
would have been re-explorations, and not what an agent under the policy would do. Whether the text behind a call has
changed meanwhile is not known: a test that runs once more is a repeat, too. Pure.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from acmserve.context.episodes.delimiter import DELIMITER
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.outline import Use, pair_results


@dataclass(frozen=True, slots=True)
class CallRepeats:
    """Tool calls of one answer. Of those that repeat an earlier one: the result is shown, or the policy took it out."""

    num_calls: int = 0
    num_shown: int = 0
    num_removed: int = 0


NO_CALLS = CallRepeats()


def find_repeats(steps: Sequence[Sequence[Message]], removed: Sequence[Collection[int]]) -> list[CallRepeats]:
    """What the answer to each prompt repeats.

    `steps[n]` are the messages that prompt n has beyond those of prompt n - 1. Messages are numbered from the first of
    the session on. `removed[n]` are those whose text prompt n does not show. The answer to prompt n is in
    `steps[n + 1]`, so nothing is known of the last. Raises ValueError where steps and removals are not as many.
    """
    messages = [message for step in steps for message in step]
    results: dict[Use, int] = {}
    for entry, (_, use) in enumerate(pair_results(messages)):
        if use is not None:
            results.setdefault(use, entry)
    ends = list(accumulate(map(len, steps)))
    earlier: dict[str, list[int]] = defaultdict(list)
    found = []
    for number, (end, taken) in enumerate(zip(ends, removed, strict=True)):
        behind = ends[number + 1] if number + 1 < len(ends) else end
        calls = [call for entry in range(end, behind) for call in _calls(messages[entry], entry)]
        # A result that is not in the prompt yet, that of a call beside this one, answers nothing.
        repeated = [known for key, _ in calls if (known := [entry for entry in earlier[key] if entry < end])]
        num_removed = sum(all(entry in taken for entry in known) for known in repeated)
        found.append(CallRepeats(len(calls), len(repeated) - num_removed, num_removed))
        for key, use in calls:
            if use in results:
                earlier[key].append(results[use])
    return found


def _calls(message: Message, entry: int) -> Iterator[tuple[str, Use]]:
    """The calls of one message, each by what makes two of them equal."""
    for number, call in enumerate(message.get("tool_calls") or ()):
        if call["function"]["name"] != DELIMITER:
            yield _key(call["function"]), Use(entry, number)


def _key(function: Mapping[str, Any]) -> str:
    """The name and the arguments, whatever the order and the spaces of their JSON."""
    arguments = function.get("arguments")
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        read = arguments
    return json.dumps([function["name"], read], sort_keys=True)


def add_up(repeats: Sequence[CallRepeats]) -> dict[str, int]:
    """JSON-ready sums."""
    return {
        "num_calls": sum(one.num_calls for one in repeats),
        "num_repeats_shown": sum(one.num_shown for one in repeats),
        "num_reexplored": sum(one.num_removed for one in repeats),
    }
