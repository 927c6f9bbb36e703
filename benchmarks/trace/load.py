"""Replays planned prompts against one server, several sessions at a time, and notes when each first token came.

    worker 0   [opening]|[pause][turn][pause][aside][turn] ...
    worker 1   [opening]|[pause][turn] ...
                        ^ all workers begin together, and so does the clock

A session's first prompt is its opening: it is read without being counted, because with `skip` it is a long one that no
server can have seen. The time of a turn runs from when its prompt stands to the first token, asides included: the user
waits for a summary, too. A session that fails is noted and ends; nothing is repeated.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from acmserve.bench.agent.plain_prompt import Plain, tagged
from acmserve.bench.harness.peer_servers import SERVED_NAME, Cached, Peer, read_cached
from acmserve.bench.trace.policy import Prompt

_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Session:
    """A planned conversation. `tag` has eight digits, another one in every replay."""

    name: str
    tag: str
    prompts: tuple[Prompt, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer, and the seconds to its first token and its last. `number` 0 is the opening of its session.

    `prompt_tokens` is what the server says; `answer` are the sampled tokens where it tells them, else the text.
    """

    number: int
    first_seconds: float
    seconds: float
    prompt_tokens: int
    answer: tuple[int, ...] | str
    cached: Cached
    aside_tokens: int = 0


@dataclass(slots=True)
class Replay:
    """What came of one session."""

    session: Session
    opening: Turn | None = None
    turns: list[Turn] = field(default_factory=list)
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What came of all sessions. `seconds` of the worker that took longest, openings left out."""

    replays: tuple[Replay, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Pace:
    """`scale` multiplies the pauses of the recording; answers have exactly `max_tokens` where a server allows it."""

    scale: float
    max_tokens: int


class _Client:
    """Asks one server."""

    def __init__(self, url: str, peer: Peer, model: str, http: httpx.AsyncClient) -> None:
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1/chat/completions"
        self._peer, self._model, self._http = peer, model, http

    async def ask(self, messages: Sequence[Plain], max_tokens: int, session_id: str, slot: int) -> tuple[Turn, float]:
        """The answer, and when its first token came. Raises RuntimeError with the server's words."""
        body = {
            "model": self._model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._peer.fields(session_id, slot),
        }
        start, first = time.monotonic(), None
        chunks: list[dict[str, Any]] = []
        async with self._http.stream("POST", self._url, json=body) as response:
            if response.status_code != 200:
                raise RuntimeError(f"HTTP {response.status_code}: {(await response.aread()).decode()[:300]}")
            async for line in response.aiter_lines():
                now = time.monotonic()
                if line.startswith("data: {"):
                    chunk = json.loads(line[6:])
                    if "error" in chunk:
                        raise RuntimeError(f"the stream failed: {chunk['error']}")
                    chunks.append(chunk)
                    if first is None and _has_token(chunk):
                        first = now
        end = time.monotonic()
        first = end if first is None else first
        usage = next((chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage")), None)
        if usage is None:
            raise RuntimeError("the stream told no usage; stream_options.include_usage is needed")
        num_prompt = int(usage["prompt_tokens"])
        cached = read_cached(self._peer, num_prompt, chunks)
        return Turn(0, first - start, end - start, num_prompt, _answer(chunks), cached), first


def _choices(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    return chunk.get("choices") or []


def _has_token(chunk: dict[str, Any]) -> bool:
    return any(
        choice.get("token_ids") or choice.get("finish_reason") or (choice.get("delta") or {}).get("content")
        for choice in _choices(chunk)
    )


def _answer(chunks: Sequence[dict[str, Any]]) -> tuple[int, ...] | str:
    choices = [choice for chunk in chunks for choice in _choices(chunk)]
    sampled = tuple(token for choice in choices for token in choice.get("token_ids") or ())
    return sampled or "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)


def run_load(
    url: str, peer: Peer, sessions: Sequence[Session], concurrency: int, pace: Pace, model: str = SERVED_NAME
) -> Load:
    """Replay sessions, `concurrency` at a time; worker k takes the sessions k, k + concurrency, ..."""
    return asyncio.run(_run(url, peer, sessions, concurrency, pace, model))


async def _run(url: str, peer: Peer, sessions: Sequence[Session], concurrency: int, pace: Pace, model: str) -> Load:
    replays = [Replay(session) for session in sessions]
    num_workers = min(concurrency, len(sessions))
    barrier = asyncio.Barrier(num_workers)
    limits = httpx.Limits(max_connections=num_workers)
    async with httpx.AsyncClient(timeout=_SECONDS, limits=limits, trust_env=False) as http:
        client = _Client(url, peer, model, http)
        workers = [_work(client, replays[slot::num_workers], slot, barrier, pace) for slot in range(num_workers)]
        seconds = await asyncio.gather(*workers)
    return Load(tuple(replays), max(seconds))


async def _work(client: _Client, replays: Sequence[Replay], slot: int, barrier: asyncio.Barrier, pace: Pace) -> float:
    """Seconds from the common start, openings left out."""
    total = 0.0
    for number, replay in enumerate(replays):
        try:
            replay.opening = await _turn(client, replay, 0, slot, pace)
        except (RuntimeError, httpx.HTTPError) as error:
            replay.failure = f"{type(error).__name__}: {error}"
        if number == 0:
            await barrier.wait()
        start = time.monotonic()
        if not replay.failure:
            await _go_on(client, replay, slot, pace)
        total += time.monotonic() - start
    return total


async def _go_on(client: _Client, replay: Replay, slot: int, pace: Pace) -> None:
    for number in range(1, len(replay.session.prompts)):
        try:
            await asyncio.sleep(pace.scale * replay.session.prompts[number].pause)
            replay.turns.append(await _turn(client, replay, number, slot, pace))
        except (RuntimeError, httpx.HTTPError) as error:
            replay.failure = f"{type(error).__name__}: {error}"
            return


async def _turn(client: _Client, replay: Replay, number: int, slot: int, pace: Pace) -> Turn:
    session = replay.session
    prompt = session.prompts[number]
    start = time.monotonic()
    num_aside = 0
    # The opening stands for all turns before it: their asides were paid then.
    for aside in prompt.asides if number else ():
        told, _ = await client.ask(tagged_aside(aside.messages, session.tag), aside.max_tokens, "", slot)
        num_aside += told.prompt_tokens
    asked = tagged(prompt.messages, session.tag)
    told, first = await client.ask(asked, pace.max_tokens, f"{session.name}-{session.tag}", slot)
    return Turn(
        number, first - start, time.monotonic() - start, told.prompt_tokens, told.answer, told.cached, num_aside
    )


def tagged_aside(messages: Sequence[Plain], tag: str) -> list[Plain]:
    """The messages of an aside under the session's tag, so that no replay finds those of another."""
    return [{"role": "system", "content": f"Session {tag}."}, *messages]
