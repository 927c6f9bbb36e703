"""Queries that wait for a map: how much they hold, what a redaction or a tokenizer does with them, and when they go."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from acmserve.context.edits.cut import cut_messages
from acmserve.context.edits.fragments import redact
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.prompts import MapQuestion
from acmserve.context.maps.rules import MapRules
from acmserve.context.session.carrying.redactions import cut_redacted
from acmserve.context.session.state import SessionState
from acmserve.context.storage.map_store import MapStore
from acmserve.context.storage.session import Session
from acmserve.context.transcript.message import Message
from acmserve.errors import IntegrityError
from acmserve.server.maps import redacted, updates
from acmserve.server.maps.maps import Maps
from acmserve.server.maps.updates import MapUpdates
from acmserve.server.models.map_model import MapAnswer
from acmserve.server.options.map_options import MapOptions, UpdateOptions
from tests.server.maps.test_maps import Scripted, make_maps, says, session_of, user
from tests.server.maps.test_queries import HeldUp
from tests.support.server.acm_app import Words, make_server

KEY = ("", "corpus")
OPTIONS = MapOptions("corpus", evolve_steps=64)
SECRET = "the safe opens with cormorant 0451 behind the harbour wall, second door"


class CountingWords(Words):
    """Counts the characters that it is given."""

    num_chars = 0

    def starts(self, text: str) -> Any:
        self.num_chars += len(text)
        return super().starts(text)


class NeverEqual(dict[str, Any]):
    """A message that counts how often it is compared."""

    num_compared = 0

    def __eq__(self, other: object) -> bool:
        NeverEqual.num_compared += 1
        return super().__eq__(other)

    __hash__ = None


def teach(maps: Maps, session: Session, options: MapOptions = OPTIONS) -> None:
    """The last answer of a session ends its query."""
    maps.finished(maps.begin(session, options, session.state), session)


def redact_message(session: Session, number: int) -> SessionState:
    """Redact one message. Returns the state from before."""
    before = session.state
    cut = cut_messages(before, number, number + 1, Words()).state
    session.state = redact(cut, cut.fragments[-1].fragment_id)
    return before


async def settled(maps: Maps, key: tuple[str, str] = KEY) -> None:
    while maps.updates.num_pending(key):
        await asyncio.sleep(0)


def long_session(num_messages: int, session_id: str = "s") -> Session:
    """One question with many results, each of which has an image beside it."""
    results: list[Message] = [
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": f"row {n} " * 40}]}
        for n in range(num_messages)
    ]
    return session_of(user("How many?"), *results, session_id=session_id, answer=says("388"))


def test_a_waiting_query_holds_no_more_than_its_map_can_read() -> None:
    maps = make_maps(HeldUp(is_held=True), window=1_500)
    image: Message = {"role": "tool", "tool_call_id": "c", "content": [{"type": "image_url", "url": "x" * 10**6}]}

    async def main() -> None:
        for number, messages in enumerate(([user("word " * 10**6)], [user("Look.")] + [image] * 8)):
            teach(maps, session_of(*messages, session_id=f"s{number}", answer=says("388")))
        teach(maps, long_session(3_000))
        assert maps.updates.num_pending(KEY) == 3
        sizes = [query.num_chars for query in maps.updates._waiting[KEY]]
        assert max(sizes) < 80_000
        maps.updates.check_integrity()
        await maps.close()

    asyncio.run(main())


def test_a_tokenizer_reads_no_more_of_a_long_query_than_its_room() -> None:
    words = CountingWords()
    maps = Maps(MapUpdates(MapStore(), MapRules(words), Scripted(), window=1_500))

    async def main() -> int:
        num_before = words.num_chars
        teach(maps, long_session(3_000))
        await settled(maps)
        return words.num_chars - num_before

    assert asyncio.run(main()) < 200_000


def test_a_redaction_of_a_long_query_costs_what_waits_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    maps = make_maps(HeldUp(is_held=True), window=1_500)
    cut: list[Message] = []

    def counting(message: Message, *rest: Any) -> Any:
        cut.append(message)
        return cut_redacted(message, *rest)

    async def main() -> None:
        session = long_session(2_000)
        entries = tuple(replace(entry, message=NeverEqual(entry.message)) for entry in session.state.entries)
        session.state = replace(session.state, entries=entries)
        for _ in range(4):
            teach(maps, session)
        before = redact_message(session, 1)
        monkeypatch.setattr(redacted, "cut_redacted", counting)
        NeverEqual.num_compared = 0
        maps.redact(session, before)
        assert NeverEqual.num_compared == 0
        assert maps.updates.num_pending(KEY) == 4
        assert len(cut) == 0, "the copy of the message itself was exchanged, and no other one has the text"
        teach(maps, session)
        assert len(cut) == 0
        await maps.close()

    asyncio.run(main())


@pytest.mark.parametrize("size", [10, 60_000], ids=["short", "long"])
@pytest.mark.parametrize("num_told", [5, 31, 34, 60])
@pytest.mark.parametrize("number", [0, 1], ids=["the message itself", "one that quotes it"])
def test_a_redaction_reaches_a_text_at_the_edge_of_what_is_told(number: int, num_told: int, size: int) -> None:
    """The edges are 2,000 characters behind the start of a long message, and 6,000 in front of its end.

    So few characters of the text are told that nobody would know them alone.
    """
    model = HeldUp(is_held=True)
    maps = make_maps(model)
    start, end = "a" * (1_999 - num_told), "c" * (5_999 - num_told)
    text = f"{start}\n{SECRET}\n{'b' * size}\n{SECRET}\n{end}"
    told = session_of(user(SECRET), user("How many?"), user(text), answer=says("388"))
    session = told if number == 0 else session_of(user(SECRET), user(text), answer=says("388"))

    async def main() -> None:
        teach(maps, session)
        maps.redact(session, redact_message(session, 2 if number == 0 else 0))
        model.is_held = False
        await settled(maps)

    asyncio.run(main())
    assert model.asked
    for question in model.asked:
        assert not any(word in question.prompt for word in ("cormorant", "harbour", "second door"))


def test_a_short_redacted_message_leaves_the_query_that_waits() -> None:
    """Its text could be any word elsewhere, so it is known by its message alone."""
    model = HeldUp(is_held=True)
    maps = make_maps(model)
    result: Message = {"role": "tool", "tool_call_id": "c", "content": "pin 04"}
    session = session_of(user("Which one?"), result, answer=says("That one."))

    async def main() -> None:
        teach(maps, session)
        maps.redact(session, redact_message(session, 1))
        model.is_held = False
        await settled(maps)

    asyncio.run(main())
    assert model.asked
    assert not any("pin 04" in question.prompt for question in model.asked)


def test_the_cartographer_reads_no_question_that_was_redacted_meanwhile() -> None:
    class Redacting(Scripted):
        async def ask(self, question: MapQuestion, options: UpdateOptions) -> MapAnswer:
            answer = await super().ask(question, options)
            if len(self.asked) == 1:
                maps.redact(session, redact_message(session, 0))
            return answer

    model = Redacting()
    maps, session = make_maps(model), session_of(user(SECRET), answer=says("Noted."))

    async def main() -> None:
        teach(maps, session)
        await settled(maps)

    asyncio.run(main())
    assert [(question.name, "cormorant" in question.prompt) for question in model.asked] == [
        ("distiller", True),
        ("distiller", False),
        ("cartographer", False),
    ]


def test_a_finished_query_teaches_where_its_session_is_deleted_behind_it() -> None:
    """A client that asks a question in a session of its own deletes it when it has the answer."""
    server, model = make_server(), HeldUp(is_held=True)
    server.maps = make_maps(model)

    async def main() -> None:
        session = server.store.create("", "s")
        session.state = session_of(user("How many?"), answer=says("388")).state
        teach(server.maps, session)
        server.store.discard(session)
        assert server.maps.updates.num_pending(KEY) == 1
        server.maps.updates.check_integrity()
        model.is_held = False
        await asyncio.wait_for(server.maps.updates.done(KEY), 60)

    asyncio.run(main())
    assert [change.session_id for change in server.maps.store.get(KEY).context_map.history] == ["s"]
    assert server.maps.updates.num_pending(KEY) == 0


def test_what_waits_is_bounded_in_sum_and_each_key_has_a_fair_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "MAX_WAITING_CHARS", 100_000)
    maps = make_maps(HeldUp(is_held=True))
    text = user("word " * 1_500)

    def teach_all(tenant: str, num_maps: int) -> list[int]:
        for number in range(num_maps):
            held = maps.store.find((tenant, f"m{number}")) or maps.store.create(
                (tenant, f"m{number}"), ContextMap(evolve_steps=64)
            )
            for _ in range(4):
                session = replace(session_of(text, answer=says("388")), tenant=tenant)
                teach(maps, session, MapOptions(held.key[1]))
                maps.updates.check_integrity()
        return [maps.updates.num_pending((tenant, f"m{number}")) for number in range(num_maps)]

    async def main() -> None:
        many = teach_all("key-1/salt", 8)
        assert all(many)
        assert maps.updates.num_chars > 80_000
        few = teach_all("key-2", 1)
        assert few == [4]
        assert maps.updates.num_chars <= 100_000
        held = maps.store.find(("key-2", "m0"))
        assert held is not None
        maps.updates._waiting[held.key].extend(maps.updates._waiting[held.key].copy() * 9)
        with pytest.raises(IntegrityError, match="characters wait"):
            maps.updates.check_integrity()
        await maps.close()

    asyncio.run(main())


def test_options_of_a_query_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(updates, "MAX_WAITING_CHARS", 100_000)
    maps = make_maps(HeldUp(is_held=True))

    async def main() -> None:
        options = MapOptions("corpus", update=UpdateOptions(vllm_xargs={"seed": "x" * 200_000}))
        teach(maps, session_of(user("How many?"), answer=says("388")), options)
        assert maps.updates.num_pending(KEY) == 0
        await maps.updates.done(KEY)
        maps.updates.check_integrity()

    asyncio.run(main())


async def replaced(maps: Maps, model: HeldUp, options: MapOptions) -> None:
    """A map is deleted while it learns from a query and another one waits. One of its name is made, and taught."""
    for session_id in ("old", "older"):
        teach(maps, session_of(user("How many?"), session_id=session_id, answer=says("388")))
    model.is_held = False
    while not model.asked:
        await asyncio.sleep(0)
    model.is_held = True
    maps.store.delete(KEY)
    teach(maps, session_of(user("How many are there now?"), session_id="new", answer=says("17")), options)


@pytest.mark.parametrize("options", [OPTIONS, MapOptions("corpus", evolve_steps=1)], ids=["many", "one"])
def test_a_map_that_is_made_anew_learns_from_its_first_query(options: MapOptions) -> None:
    """Of the former map two queries wait. They take no place of the new one's, which may learn from one alone."""
    model = HeldUp(is_held=True, num_words=3)
    maps = make_maps(model)

    async def main() -> int:
        await replaced(maps, model, options)
        num_pending = maps.updates.num_pending(KEY)
        maps.updates.check_integrity()
        model.is_held = False
        await asyncio.wait_for(maps.updates.done(KEY), 60)
        maps.updates.check_integrity()
        return num_pending

    num_pending = asyncio.run(main())
    context_map = maps.store.get(KEY).context_map
    assert [(change.session_id, change.error) for change in context_map.history] == [("new", "")]
    assert context_map.num_steps == 1
    assert (num_pending, maps.updates.num_pending(KEY)) == (1, 0)


def test_control_a_map_that_is_not_made_anew_is_not_taught() -> None:
    model = HeldUp(is_held=True)
    maps = make_maps(model)

    async def main() -> None:
        teach(maps, session_of(user("How many?"), answer=says("388")))
        await asyncio.sleep(0)
        maps.store.delete(KEY)
        model.is_held = False
        await asyncio.wait_for(maps.updates.done(KEY), 60)
        maps.updates.check_integrity()

    asyncio.run(main())
    assert maps.store.find(KEY) is None
    assert not maps.updates._tasks


def test_shutdown_notes_the_query_of_a_map_that_was_made_anew() -> None:
    model = HeldUp(is_held=True)
    maps = make_maps(model)

    async def main() -> None:
        await replaced(maps, model, OPTIONS)
        await maps.close()

    asyncio.run(main())
    context_map = maps.store.get(KEY).context_map
    assert [(change.session_id, change.error) for change in context_map.history] == [
        ("new", "The server stopped before the update was done.")
    ]
    assert (context_map.num_steps, context_map.num_read_tokens) == (0, 0)
