"""Events of sessions: who hears of what, and what becomes of a reader that does not listen."""

from __future__ import annotations

import asyncio
import gc

import pytest

from acmserve.errors import IntegrityError, Unavailable
from acmserve.server.sessions.events import MAX_READERS, MAX_WAITING, EventReader, SessionEvent, SessionEvents


def heard(reader: EventReader) -> list[tuple[str, str]]:
    return [(event.kind, event.session_id) for event in asyncio.run(reader.wait(0))]


def test_a_reader_hears_of_its_tenant_and_session_alone() -> None:
    events = SessionEvents()
    assert not events.is_heard
    with events.read("a") as every, events.read("a", "s") as one, events.read("b") as other:
        for key in (("a", "s"), ("a", "t"), ("b", "s")):
            events.publish(key, "turn_started")
        assert heard(every) == [("opened", ""), ("turn_started", "s"), ("turn_started", "t")]
        assert heard(one) == [("opened", ""), ("turn_started", "s")]
        assert heard(other) == [("opened", ""), ("turn_started", "s")]
        assert events.is_heard
        events.check_integrity()
    assert len(events) == 0


def test_changes_in_a_row_are_one() -> None:
    events = SessionEvents()
    with events.read("a") as reader:
        for number in range(MAX_WAITING * 2):
            events.publish(("a", "s"), "changed", num_messages=number)
        _, last = asyncio.run(reader.wait(0))
    assert last.as_json() == {"type": "changed", "session_id": "s", "num_messages": MAX_WAITING * 2 - 1}


def test_a_reader_that_is_too_slow_is_dropped_and_told() -> None:
    events = SessionEvents()
    with events.read("a") as slow, events.read("a") as quick:
        for number in range(MAX_WAITING + 1):
            events.publish(("a", str(number)), "turn_started")
            heard(quick)
        events.check_integrity()
        assert heard(slow) == [("dropped", "")]
        events.publish(("a", "s"), "deleted")
        assert heard(slow) == [], "nothing more"
        assert heard(quick) == [("deleted", "s")]


def test_a_key_has_so_many_streams_and_leaves_others_theirs() -> None:
    events = SessionEvents()
    readers = [events.read("a") for _ in range(MAX_READERS)]
    with pytest.raises(Unavailable, match=f"{MAX_READERS} event streams of this API key are open"):
        events.read("a")
    with events.read("b"):
        assert len(events) == MAX_READERS + 1
    readers.pop()
    gc.collect()
    with events.read("a"):
        assert len(events) == MAX_READERS, "a reader that nobody holds is forgotten"


def test_a_reader_that_waits_hears_at_once() -> None:
    async def listen() -> list[SessionEvent]:
        events = SessionEvents()
        with events.read("a") as reader:
            await reader.wait(0)
            asyncio.get_running_loop().call_soon(events.publish, ("a", "s"), "turn_failed")
            return await reader.wait(60)

    assert [event.kind for event in asyncio.run(listen())] == ["turn_failed"]


def test_integrity_is_checked() -> None:
    events = SessionEvents()
    with events.read("a") as reader:
        reader._waiting.extend([SessionEvent("changed")] * MAX_WAITING)
        with pytest.raises(IntegrityError, match=f"{MAX_WAITING + 1} wait for one reader"):
            events.check_integrity()
