"""Sessions that are replayed at a time end together where one cannot go on, and where the run is ended."""

from __future__ import annotations

from threading import Event, Semaphore, Thread
from typing import Any

import pytest

from acmserve.bench.trace import load
from acmserve.bench.trace.load import AnsweredTurn, PlannedSession, ReplayRates, run_load
from acmserve.bench.trace.peer_servers import Cached, Peer
from acmserve.bench.trace.prompts import Prompt

PROMPT = Prompt((), (), is_edited=False, is_forced=False, pause=0.0)
SESSIONS = tuple(PlannedSession(str(number), "00000000", (PROMPT,) * 3) for number in range(3))
RATES = ReplayRates(scale=1.0, max_tokens=1)
ENDED_SECONDS = 300.0


def ended_with(rates: ReplayRates) -> BaseException | None:
    """The error of a replay, in a thread that a suite can leave behind. It has to end."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            run_load("http://x", Peer("stock"), SESSIONS, rates)
        except (LookupError, KeyboardInterrupt) as error:
            raised.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(ENDED_SECONDS)
    assert not thread.is_alive(), "it waits for ever"
    return raised[0] if raised else None


@pytest.mark.parametrize("number", [0, 1], ids=["in an opening", "in a turn"])
@pytest.mark.parametrize("session", ["0", "2"])
def test_an_error_of_another_kind_ends_all_sessions_and_comes_out(
    number: int, session: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others arrive in ten minutes: nobody waits for that."""

    def ask(url: str, peer: Peer, model: str, one: PlannedSession, asked: int, *_: Any) -> AnsweredTurn:
        if (one.name, asked) == (session, number):
            raise LookupError(f"the usage of {one.name} cannot be read")
        return AnsweredTurn(asked, 0.1, 1, "", Cached(None, None, None))

    monkeypatch.setattr(load, "_ask", ask)
    begins = [0.0 if one.name == session else 600.0 for one in SESSIONS]
    monkeypatch.setattr(load, "plan_arrivals", lambda *_: begins)
    error = ended_with(RATES)
    assert isinstance(error, LookupError)
    assert str(error) == f"the usage of {session} cannot be read"


def test_the_end_of_the_run_ends_sessions_that_have_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal interrupts the thread that waits for them, behind all openings."""

    num_waiting = Semaphore(0)

    class Told(Event):
        def wait(self, timeout: float | None = None) -> bool:
            num_waiting.release()
            return super().wait(timeout)

    def interrupted(*_: Any, **__: Any) -> None:
        for _session in SESSIONS:
            num_waiting.acquire()
        raise KeyboardInterrupt

    monkeypatch.setattr(load, "Event", Told)
    monkeypatch.setattr(load, "_ask", lambda *_: AnsweredTurn(0, 0.1, 1, "", Cached(None, None, None)))
    monkeypatch.setattr(load, "plan_arrivals", lambda *_: [600.0] * len(SESSIONS))
    monkeypatch.setattr(load, "wait", interrupted)
    assert isinstance(ended_with(RATES), KeyboardInterrupt)
