"""The gate in 16 bits, where stock vLLM is not the same as itself: distances stand in place of equality. Pure.

    stock / stock    the same prompts once more, from no KV at all: how far stock is from itself
    exact / stock    has to be nearer to that than to the control
    reuse / stock    the control: moved KV, as far as `exact` would be if it served that

A distance is in nats: the mean difference of the log-probabilities of the ten likeliest tokens. The mean goes up to and
with the first token that differs, and over all prompts that were asked. Where the control is no further from stock than
stock from itself, nothing could be told, and the gate is blind. Moved KV that is served as exact is as far as the
control.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from acmserve.bench.edit.gate import likeliest
from acmserve.bench.harness.engine import EngineReply
from acmserve.bench.trace.score import ReplayCell
from acmserve.bench.trace.witness import WITNESSES, moving_policies, pairs_with_stock

BLIND = "so the gate is blind"
NEEDED = "`exact`, `reuse`, stock twice, and a session with moves"


def nats_from_stock(cells: Sequence[ReplayCell]) -> dict[str, dict[str, float]]:
    """By policy and server. Stock's own is that of its fresh answers."""
    found: dict[str, dict[str, float]] = {}
    for policy, name, pairs in pairs_with_stock(cells):
        found.setdefault(policy, {})[name] = statistics.fmean(nats_apart(*pair) for pair in pairs)
    return found


def nats_apart(one: EngineReply, stock: EngineReply) -> float:
    """Mean difference of log-probabilities. A token that an answer does not list has the lowest one that it lists."""
    return statistics.fmean(
        abs(listed.get(token, min(listed.values())) - logprob) for listed, token, logprob in likeliest(one, stock)
    )


def check_distances(cells: Sequence[ReplayCell]) -> list[str]:
    """Why `exact` may serve moved KV, or why nobody could tell."""
    return [failure for policy, found in _judged(cells) for failure in _check(policy, found)]


def _check(policy: str, found: Mapping[str, float]) -> list[str]:
    exact, moved, own = (found[name] for name in WITNESSES)
    if moved <= max(exact, own):
        return [f"{policy}: {_told(found)}, {BLIND}"]
    if 2 * exact >= own + moved:
        return [f"{policy}: {_told(found)}, so exact is as moved KV is"]
    return []


def distance_notes(cells: Sequence[ReplayCell]) -> list[str]:
    """What was judged, and of which policies nothing was."""
    judged = dict(_judged(cells))
    blind = dict.fromkeys(cell.policy for cell in cells if cell.witnesses and cell.policy not in judged)
    return [
        *(f"{policy}: {_told(found)}" for policy, found in judged.items()),
        *(f"{policy}: the gate needs {NEEDED}, {BLIND}" for policy in blind),
    ]


def _told(found: Mapping[str, float]) -> str:
    exact, moved, own = (found[name] for name in WITNESSES)
    return f"exact is {exact:.3f} nats from stock, moved KV {moved:.3f}, and stock from itself {own:.3f}"


def _judged(cells: Sequence[ReplayCell]) -> Iterator[tuple[str, dict[str, float]]]:
    moving = moving_policies(cells)
    for policy, found in nats_from_stock(cells).items():
        if policy in moving and found.keys() >= set(WITNESSES):
            yield policy, found
