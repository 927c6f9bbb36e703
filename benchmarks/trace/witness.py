"""Whether `exact` answers as stock vLLM does, by more than the tokens of short answers: the gate of `bench edit`.

Behind each replay last prompts are asked for once more, untimed, with 32 tokens and their log-probabilities. Their KV
is what the timed turns left, with all that was kept, moved and computed in them. The sessions with the most edits are
asked, four at most.

    exact / stock    every token is the same, and every log-probability is within 1e-3
    reuse / stock    the control: where a conversation has moves, moved KV that passes as exact makes the gate blind

The same prompts are asked of all three, so nothing is compared that differs by itself. It knows nothing of times.
In 16 bits stock differs from itself, and distances are compared (`half_precision.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import httpx

from acmserve.bench.agent.plain_prompt import tagged
from acmserve.bench.edit.exact_check import read_token_id
from acmserve.bench.edit.gate import NUM_LISTED, NUM_TOKENS, AnswerDistance, check_control, compare_answers
from acmserve.bench.harness.chat_stream import stream_chat
from acmserve.bench.harness.engine import EngineReply
from acmserve.bench.trace.load import PlannedSession, SessionReplay
from acmserve.bench.trace.peer_servers import EXACT, REUSE, STOCK, Peer
from acmserve.bench.trace.score import ReplayCell
from acmserve.errors import AcmError

WITNESSES = (EXACT, REUSE, STOCK)
MOST_WITNESSED = 4
_FRESH = "fresh"


def witnessed(sessions: Sequence[PlannedSession]) -> list[int]:
    """Places of the sessions that are asked, those with the most edits first."""

    def num_edits(place: int) -> int:
        return sum(prompt.is_edited for prompt in sessions[place].prompts[1:])

    return sorted(range(len(sessions)), key=lambda place: -num_edits(place))[:MOST_WITNESSED]


def ask_witnesses(
    url: str, peer: Peer, model: str, sessions: Sequence[PlannedSession], *, is_fresh: bool = False
) -> tuple[EngineReply, ...]:
    """Last prompts once more, `is_fresh` with a salt under which there is no KV. () where the gate compares nothing.

    Raises AcmError with the server's words.
    """
    if peer.name not in WITNESSES:
        return ()
    return tuple(_ask(url, peer, model, sessions[place], is_fresh) for place in witnessed(sessions))


def _ask(url: str, peer: Peer, model: str, session: PlannedSession, is_fresh: bool) -> EngineReply:
    fields = peer.fields(f"{session.name}-{session.tag}", 0)
    body = {
        "model": model,
        "messages": tagged(session.prompts[-1].messages, session.tag),
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "stream": True,
        "logprobs": True,
        "top_logprobs": NUM_LISTED,
        "return_tokens_as_token_ids": True,
        **fields,
        **({"cache_salt": _FRESH} if is_fresh else {}),
    }
    try:
        return read_reply([chunk for chunk, _ in stream_chat(url.rstrip("/").removesuffix("/v1"), body)])
    except (RuntimeError, httpx.HTTPError) as error:
        raise AcmError(f"{peer.title} did not answer a last prompt once more: {error}") from error


def read_reply(chunks: Sequence[Mapping[str, Any]]) -> EngineReply:
    """Tokens and log-probabilities of a streamed answer. Raises AcmError where it has none."""
    choices = [choice for chunk in chunks for choice in chunk.get("choices") or ()]
    listed = [one for choice in choices for one in (choice.get("logprobs") or {}).get("content") or ()]
    if not listed:
        raise AcmError("the answer has no log-probabilities")
    tokens = tuple(read_token_id(one["token"]) for one in listed)
    logprobs = tuple(
        {read_token_id(likely["token"]): float(likely["logprob"]) for likely in one["top_logprobs"]} for one in listed
    )
    return EngineReply(0.0, 0, tokens, "", None, logprobs)


def compare_witnesses(cells: Sequence[ReplayCell]) -> dict[str, dict[str, AnswerDistance]]:
    """By policy, how far `exact` and `reuse` are from stock, where both were asked. Stock itself where it was twice."""
    found: dict[str, dict[str, AnswerDistance]] = {}
    for policy, name, pairs in pairs_with_stock(cells):
        found.setdefault(policy, {})[name] = _in_all([compare_answers(*pair) for pair in pairs])
    return found


def pairs_with_stock(cells: Sequence[ReplayCell]) -> Iterator[tuple[str, str, list[tuple[EngineReply, EngineReply]]]]:
    """Policy, server, and each of its answers with that of stock to the same prompt. Stock's own are the fresh ones."""
    stocks = {cell.policy: cell for cell in cells if cell.peer.name == STOCK}
    for cell in cells:
        stock = stocks.get(cell.policy)
        replies = cell.fresh if cell is stock else cell.witnesses
        if stock is not None and replies and stock.witnesses:
            yield cell.policy, cell.peer.name, list(zip(replies, stock.witnesses, strict=True))


def _in_all(distances: Sequence[AnswerDistance]) -> AnswerDistance:
    """Of several answers: all their tokens, and the largest difference."""
    return AnswerDistance(
        sum(one.num_tokens for one in distances),
        sum(one.num_same for one in distances),
        max(one.largest_difference for one in distances),
    )


def check_witnesses(cells: Sequence[ReplayCell], *, has_layers: bool) -> list[str]:
    """Why `exact` is not stock, or why the gate could not tell. KV of one layer knows nothing to be moved with it."""
    compared = compare_witnesses(cells)
    failures = [
        f"exact, {policy}: answers otherwise than stock vLLM: {found[EXACT]}"
        for policy, found in compared.items()
        if EXACT in found and not found[EXACT].is_same
    ]
    moving = moving_policies(cells)
    controls = [found[REUSE] for policy, found in compared.items() if REUSE in found and policy in moving]
    return [*failures, *(check_control(controls) if has_layers else [])]


def moving_policies(cells: Sequence[ReplayCell]) -> set[str]:
    """Policies under which a session that was asked had moves."""
    return {cell.policy for cell in cells if cell.peer.name == REUSE and _has_moved(cell.loads[-1].replays)}


def _has_moved(replays: Sequence[SessionReplay]) -> bool:
    asked = witnessed([replay.session for replay in replays])
    return any(turn.cached.moved for place in asked for turn in replays[place].turns)
