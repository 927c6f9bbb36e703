"""Replays planned prompts against one server, all sessions at the same time, and notes when each first token came.

    session 0   [opening]|[pause][turn][pause][turn] ...
    session 1   [opening]|[pause][turn] ...
                         ^ all begin together, and so does the clock

With arrivals the load is open: sessions begin at times of a Poisson process, whether or not others are through.

    session 0   [opening]|[pause][turn] ...
    session 1   [opening]|......[pause][turn] ...
    session 2   [opening]|.................[pause][turn] ...

A session's first prompt is its opening, which is read without being counted. The reason is that with `skip` the opening
is a long prompt that no server can have seen. A session that fails is noted and ends. Nothing is repeated. An error of
another kind, or the end of the run, ends all sessions.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Barrier, BrokenBarrierError, Event
from typing import Any

import httpx

from acmserve.bench.agent.plain_prompt import PromptWriter, tagged
from acmserve.bench.harness.chat_stream import has_token, stream_chat
from acmserve.bench.trace.peer_servers import SERVED_NAME, Cached, Peer, read_cached
from acmserve.bench.trace.prompts import Prompt

_SEED = 58
"""Of the first draw of arrivals. In it and the next four the last of six sessions begins amid the others' work."""


@dataclass(frozen=True, slots=True)
class PlannedSession:
    """A planned conversation. `tag` has eight digits, another one in every replay. `max_tokens` is its budget, or 0."""

    name: str
    tag: str
    prompts: tuple[Prompt, ...]
    max_tokens: int = 0


@dataclass(frozen=True, slots=True)
class AnsweredTurn:
    """One answer, with the seconds to its first token and to its end. `number` 0 is the opening of its session.

    `prompt_tokens` is what the server says. `answer` are the sampled tokens where it tells them, else the text.
    """

    number: int
    first_seconds: float
    prompt_tokens: int
    answer: tuple[int, ...] | str
    cached: Cached
    seconds: float = 0.0


@dataclass(slots=True)
class SessionReplay:
    """What came of one session."""

    session: PlannedSession
    turns: list[AnsweredTurn] = field(default_factory=list)
    failure: str = ""

    @property
    def edited_seconds(self) -> list[float]:
        """Seconds to the first token of each turn behind an edit."""
        return [turn.first_seconds for turn in self.turns if self.is_edited(turn)]

    def is_edited(self, turn: AnsweredTurn) -> bool:
        """Whether a turn of this session is one behind an edit."""
        return self.session.prompts[turn.number].is_edited


@dataclass(frozen=True, slots=True)
class Load:
    """What came of all sessions. `seconds` of the one that took longest, openings left out. Groups are added up."""

    replays: tuple[SessionReplay, ...]
    seconds: float

    @property
    def edited_seconds(self) -> list[float]:
        """Seconds to the first token of each turn behind an edit, all sessions."""
        return [seconds for replay in self.replays for seconds in replay.edited_seconds]


@dataclass(frozen=True, slots=True)
class ReplayRates:
    """`scale` multiplies the pauses of the recording. Answers have exactly `max_tokens` where a server allows it.

    With 0 of them they are as long as the recorded ones. `arrivals` are sessions a minute that begin, on average. 0:
    all begin together. Each `repetition` has a draw of its own, which all servers share. `num_together` sessions are
    replayed at a time, 0 for all.
    """

    scale: float
    max_tokens: int
    arrivals: float = 0.0
    num_together: int = 0
    repetition: int = 0


def warm_session() -> PlannedSession:
    """An opening, an append and an edit of about 600 tokens together, on a text that no counted prompt has."""

    def text(topic: str, num_lines: int) -> str:
        return "\n".join(f"Line {number} about {topic}, which nobody counts." for number in range(num_lines))

    said = [text("warm engines", 12), "Read.", text("cold engines", 12), "Read.", text("appended engines", 4)]
    head = {"role": "system", "content": f"Session {PromptWriter.NO_TAG}. "}
    whole = [{"role": ("user", "assistant")[place % 2], "content": one} for place, one in enumerate(said)]
    folded = [{**whole[0], "content": "Folded."}, *whole[1:]]
    prompts = [
        Prompt((head, *shown), (), is_edited=shown[0] != whole[0], is_forced=False, pause=0.0)
        for shown in (whole[:3], whole, folded)
    ]
    return PlannedSession("warm-up", "99999999", tuple(prompts))


def warm_up(url: str, peer: Peer) -> Load:
    """The first requests of a server that was just started. They are slower than those to come, and no report has them.

    A policy's peers may share a server. Each has its own way through it, and is warmed up by itself.
    """
    return run_load(url, peer, [warm_session()], ReplayRates(scale=0.0, max_tokens=4))


def plan_arrivals(num_sessions: int, arrivals: float, repetition: int = 0) -> list[float]:
    """Seconds at which sessions begin: the first at once, then at the gaps of a Poisson process. Pure.

    Each repetition has another draw.
    """
    if not arrivals:
        return [0.0] * num_sessions
    draw, begins = random.Random(_SEED + repetition), [0.0]
    for _ in range(num_sessions - 1):
        begins.append(begins[-1] + draw.expovariate(arrivals / 60))
    return begins


def run_load(
    url: str, peer: Peer, sessions: Sequence[PlannedSession], rates: ReplayRates, model: str = SERVED_NAME
) -> Load:
    """Replay sessions, a few at a time, each in a thread of its own."""
    size = rates.num_together or len(sessions)
    groups = [sessions[first : first + size] for first in range(0, len(sessions), size)]
    loads = [_run_together(url, peer, group, rates, model) for group in groups]
    return Load(tuple(replay for load in loads for replay in load.replays), sum(load.seconds for load in loads))


def _run_together(url: str, peer: Peer, sessions: Sequence[PlannedSession], rates: ReplayRates, model: str) -> Load:
    begins = plan_arrivals(len(sessions), rates.arrivals, rates.repetition)
    barrier, is_ended = Barrier(len(sessions)), Event()
    replays = [SessionReplay(session) for session in sessions]
    base = url.rstrip("/").removesuffix("/v1")

    def run_one(slot: int) -> float:
        replay = replays[slot]

        def ask(number: int) -> AnsweredTurn:
            return _ask(base, peer, model, replay.session, number, slot, rates.max_tokens)

        try:
            ask(0)
        except (RuntimeError, httpx.HTTPError) as error:
            replay.failure = f"{type(error).__name__}: {error}"
        barrier.wait()
        start = time.monotonic()
        is_ended.wait(begins[slot])
        for number in range(1, 0 if replay.failure else len(replay.session.prompts)):
            if is_ended.wait(rates.scale * replay.session.prompts[number].pause):
                break
            try:
                replay.turns.append(ask(number))
            except (RuntimeError, httpx.HTTPError) as error:
                replay.failure = f"{type(error).__name__}: {error}"
                break
        return time.monotonic() - start

    with ThreadPoolExecutor(len(sessions)) as pool:
        running = [pool.submit(run_one, slot) for slot in range(len(sessions))]
        try:
            wait(running, return_when=FIRST_EXCEPTION)
        finally:
            # Nobody waits any more for a session that will not come.
            is_ended.set()
            barrier.abort()
    errors = [error for one in running if (error := one.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
        raise error
    return Load(tuple(replays), max(one.result() for one in running))


def _ask(
    url: str, peer: Peer, model: str, session: PlannedSession, number: int, slot: int, max_tokens: int
) -> AnsweredTurn:
    """One turn of a session. Raises RuntimeError with the server's words."""
    prompt = session.prompts[number]
    body = {
        "model": model,
        "messages": tagged(prompt.messages, session.tag),
        "max_tokens": max_tokens or max(1, prompt.num_answered),
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **peer.fields(f"{session.name}-{session.tag}", slot),
    }
    start, first = time.monotonic(), None
    chunks: list[dict[str, Any]] = []
    for chunk, now in stream_chat(url, body):
        chunks.append(chunk)
        if first is None and any(map(has_token, chunk.get("choices") or ())):
            first = now
    usage = next((chunk["usage"] for chunk in reversed(chunks) if chunk.get("usage")), None)
    if usage is None or first is None:
        raise RuntimeError("the stream had no token, or no usage; stream_options.include_usage is needed")
    num_prompt = int(usage["prompt_tokens"])
    cached = read_cached(peer, num_prompt, chunks)
    return AnsweredTurn(number, first - start, num_prompt, _answer(chunks), cached, time.monotonic() - start)


def _answer(chunks: Sequence[dict[str, Any]]) -> tuple[int, ...] | str:
    choices = [choice for chunk in chunks for choice in chunk.get("choices") or ()]
    sampled = tuple(token for choice in choices for token in choice.get("token_ids") or ())
    return sampled or "".join((choice.get("delta") or {}).get("content") or "" for choice in choices)
