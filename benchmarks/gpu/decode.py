"""Prefill beside a decode: what an engine could compute ahead while it answers. One stage of the suite.

    alone     a session answers and nobody else is there. Chunks, each a prompt of its own, and nobody else is there
    beside    the same answer, while another session sends as many chunks, one behind the other

    share that was hidden = 1 - (answer beside - answer alone) / chunks alone        1: the chunks cost nothing

A decode of one sequence reads all weights for one token, so a card has time left for the tokens of a chunk. A CPU has
none. This is stock vLLM's batch of a decode and a prefill. It knows nothing of what acmserve would compute ahead.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from acmserve.bench.agent.estimates import bootstrap_interval
from acmserve.bench.gpu.engine_pair import EnginePair
from acmserve.bench.gpu.served_model import ServedModel
from acmserve.bench.harness.engine import Ask, PlayedSessions
from acmserve.bench.harness.options import as_gate
from acmserve.bench.harness.run_log import counted, progress
from acmserve.bench.provenance.drawn_order import draw_order

NUM_CHUNKS, CONTEXT_TOKENS, NEW_TOKENS, ANSWER_TOKENS = 8, 1024, 16, 128
LONGEST = CONTEXT_TOKENS + NEW_TOKENS + ANSWER_TOKENS
_NUM_SAMPLES = 2_000
_Round = tuple[float, float, float]
_WAYS = (ANSWER, ALONE, BESIDE) = ("answer", "chunks alone", "chunks beside")


@dataclass
class DecodeTimes:
    """Seconds of one length of chunk, a value for each repetition: the answer alone, all chunks alone, the answer.

    `num_outlasted` are the repetitions whose chunks were not done when the answer beside them was.
    """

    chunk_tokens: int
    answer: list[float] = field(default_factory=list)
    chunks: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    num_outlasted: int = 0
    failures: list[str] = field(default_factory=list)


def measure_decode(pair: EnginePair, chunks: Sequence[int], num_repetitions: int) -> dict[str, Any]:
    """JSON-ready. `chunks` are their lengths in tokens. A repetition in front of the others warms up."""
    measured = [DecodeTimes(chunk) for chunk in chunks]
    for repetition in range(num_repetitions + 1):
        what = "prefill beside a decode"
        progress(counted(repetition, num_repetitions, what) if repetition else f"{what}: warm-up, not counted")
        for times in measured:
            found = run_repetition(pair, times.chunk_tokens, repetition)
            if repetition:
                add(times, found)
    return decode_report(measured, num_repetitions)


def run_repetition(pair: EnginePair, chunk_tokens: int, repetition: int) -> dict[str, PlayedSessions]:
    """All three ways, in a drawn order, with tokens of their own."""
    found = {}
    for way in draw_order(_WAYS, "decode", chunk_tokens, repetition):
        key = f"decode {way} {chunk_tokens} {repetition}"
        opening, answer = plan_answer(pair.model, key)
        chunks = plan_chunks(pair.model, chunk_tokens, key)
        pair.stock.ask(opening)
        found[way] = pair.stock.play({ANSWER: [[answer]], ALONE: [chunks], BESIDE: [[answer], chunks]}[way])
    return found


def plan_answer(model: ServedModel, key: str) -> tuple[Ask, Ask]:
    """A prompt that is read first, and one that goes on with it and is answered. Pure."""
    text = model.draw_tokens(CONTEXT_TOKENS + NEW_TOKENS, key)
    return Ask(text[:CONTEXT_TOKENS], key), Ask(text, key, max_tokens=ANSWER_TOKENS, ignore_eos=True)


def plan_chunks(model: ServedModel, chunk_tokens: int, key: str) -> list[Ask]:
    """Prompts that nobody has read. Pure."""
    salts = [f"{key} {number}" for number in range(NUM_CHUNKS)]
    return [Ask(model.draw_tokens(chunk_tokens, salt), salt) for salt in salts]


def add(times: DecodeTimes, found: dict[str, PlayedSessions]) -> None:
    """Keep the seconds of a repetition, and what is wrong with it."""
    alone, beside = found[ANSWER].turn_seconds[0][0], found[BESIDE].turn_seconds[0][0]
    times.answer.append(alone)
    times.chunks.append(sum(found[ALONE].turn_seconds[0]))
    times.beside.append(beside)
    times.num_outlasted += sum(found[BESIDE].turn_seconds[1]) > beside
    read = {reply.cached_tokens for way in (ALONE, BESIDE) for reply in found[way].replies[-1]}
    if read != {0}:
        times.failures.append(f"chunks were found in the cache: {sorted(read)} tokens")


def decode_report(measured: Sequence[DecodeTimes], num_repetitions: int) -> dict[str, Any]:
    """Medians, and the share that was hidden with its interval over repetitions. Pure."""
    failures = [f"chunks of {times.chunk_tokens}: {said}" for times in measured for said in times.failures]
    return {
        "gate": as_gate(failures),
        "repetitions": num_repetitions,
        "answer_tokens": ANSWER_TOKENS,
        "chunks": NUM_CHUNKS,
        "rows": [_row(times) for times in measured],
    }


def _row(times: DecodeTimes) -> dict[str, Any]:
    rounds = list(zip(times.answer, times.chunks, times.beside, strict=True))
    answer, chunks, beside = _medians(rounds)
    hidden: dict[str, Any] = {}
    if not times.num_outlasted:  # else a part of them ran behind the answer, and was hidden from it by nothing
        hidden["hidden_share"] = round(hidden_share(rounds), 4)
        hidden["hidden_interval"] = bootstrap_interval(rounds, hidden_share, _NUM_SAMPLES)
    return {
        "chunk_tokens": times.chunk_tokens,
        "token_ms": round(1e3 * answer / ANSWER_TOKENS, 3),
        "chunk_ms": round(1e3 * chunks / NUM_CHUNKS, 3),
        "added_ms": round(1e3 * (beside - answer) / NUM_CHUNKS, 3),
        "outlasted": times.num_outlasted,
        **hidden,
        "seconds": {"answer": times.answer, "chunks": times.chunks, "beside": times.beside},
    }


def hidden_share(rounds: Sequence[_Round]) -> float:
    """Of the chunks' own time, by medians. Below 0 where the answer lost more than the chunks take by themselves."""
    answer, chunks, beside = _medians(rounds)
    return 1 - (beside - answer) / chunks


def _medians(rounds: Sequence[_Round]) -> _Round:
    answer, chunks, beside = (statistics.median(one) for one in zip(*rounds, strict=True))
    return answer, chunks, beside
