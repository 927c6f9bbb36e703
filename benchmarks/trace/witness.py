"""Whether `exact` answers as stock vLLM does, by more than the tokens of short answers: the gate of `bench edit`.

Behind each replay the last prompt is asked for once more, untimed, with 32 tokens and their log-probabilities. Its KV
is what the timed turns left, with all that was kept, moved and computed in them.

    exact / stock    every token is the same, and every log-probability is within 1e-3
    reuse / stock    the control: where a conversation has moves, moved KV that passes as exact makes the gate blind

The same prompt is asked of all three, so nothing is compared that differs by itself. It knows nothing of times.
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
from acmserve.bench.trace.load import PlannedSession
from acmserve.bench.trace.peer_servers import EXACT, REUSE, STOCK, Peer
from acmserve.bench.trace.score import ReplayCell
from acmserve.errors import AcmError

WITNESSES = (EXACT, REUSE, STOCK)


def ask_witness(url: str, peer: Peer, model: str, session: PlannedSession) -> EngineReply | None:
    """The last prompt of a session once more. None for servers that the gate does not compare.

    Raises AcmError with the server's words.
    """
    if peer.name not in WITNESSES:
        return None
    body = {
        "model": model,
        "messages": tagged(session.prompts[-1].messages, session.tag),
        "max_tokens": NUM_TOKENS,
        "temperature": 0,
        "stream": True,
        "logprobs": True,
        "top_logprobs": NUM_LISTED,
        "return_tokens_as_token_ids": True,
        **peer.fields(f"{session.name}-{session.tag}", 0),
    }
    try:
        return read_reply([chunk for chunk, _ in stream_chat(url.rstrip("/").removesuffix("/v1"), body)])
    except (RuntimeError, httpx.HTTPError) as error:
        raise AcmError(f"{peer.title} did not answer the last prompt once more: {error}") from error


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
    """By policy, how far `exact` and `reuse` are from stock, where both were asked."""
    by_name = {(cell.peer.name, cell.policy): cell.witness for cell in cells}
    found: dict[str, dict[str, AnswerDistance]] = {}
    for (name, policy), reply in by_name.items():
        stock = by_name.get((STOCK, policy))
        if name != STOCK and reply is not None and stock is not None:
            found.setdefault(policy, {})[name] = compare_answers(reply, stock)
    return found


def check_witnesses(cells: Sequence[ReplayCell], *, has_layers: bool) -> list[str]:
    """Why `exact` is not stock, or why the gate could not tell. KV of one layer knows nothing to be moved with it."""
    compared = compare_witnesses(cells)
    failures = [
        f"exact, {policy}: answers otherwise than stock vLLM: {found[EXACT]}"
        for policy, found in compared.items()
        if EXACT in found and not found[EXACT].is_same
    ]
    moving = set(_moving(cells))
    controls = [found[REUSE] for policy, found in compared.items() if REUSE in found and policy in moving]
    return [*failures, *(check_control(controls) if has_layers else [])]


def _moving(cells: Sequence[ReplayCell]) -> Iterator[str]:
    """Policies under which the first session, of which the witness is, had moves."""
    for cell in cells:
        if cell.peer.name == REUSE and any(turn.cached.moved for turn in cell.loads[-1].replays[0].turns):
            yield cell.policy
