"""Long work of one request gives the event loop back, and nobody sees a half of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from httpx import ASGITransport, AsyncClient

from acmserve.context.session.history import append_answer, end_turn
from acmserve.context.storage.session import Session
from acmserve.context.tools.batch import Edit, EditKind
from acmserve.errors import NotFound
from acmserve.server.context.server import ContextServer
from tests.support.server.acm_app import SESSIONS, Words, lines, make_app, make_server

NUM_MESSAGES = 8
FOLDS = [Edit(EditKind.FOLD, messages=(at, at + 1)) for at in range(NUM_MESSAGES - 1)]
ASKED = [{"op": "fold", "messages": {"start": 0, "end": NUM_MESSAGES - 1}}]
ANSWER = {"role": "assistant", "content": "Meanwhile."}


class SlowWords(Words):
    """Each text takes longer than a slice. `at` has the tick in which each was counted, `tick` looks at it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self.num_ticks = 0
        self.at: list[int] = []
        self.tick: Callable[[], object] = lambda: None

    def starts(self, text: str) -> Sequence[int]:
        if self.is_slow:
            time.sleep(0.021)
            self.at.append(self.num_ticks)
        return super().starts(text)

    async def ticking(self) -> None:
        """Another request: it runs whenever the loop is free."""
        while True:
            self.num_ticks += 1
            self.tick()
            await asyncio.sleep(0)


def sliced(words: SlowWords, work: Coroutine[Any, Any, Any]) -> Any:
    """What the work returns, beside a task that ticks."""

    async def both() -> Any:
        words.is_slow = True
        ticking = asyncio.create_task(words.ticking())
        await asyncio.sleep(0)
        try:
            return await work
        finally:
            ticking.cancel()
            words.is_slow = False

    return asyncio.run(both())


@pytest.fixture
def words() -> SlowWords:
    return SlowWords()


@pytest.fixture
def server(words: SlowWords) -> ContextServer:
    return make_server(tokenizer=words)


async def asked(server: ContextServer, method: str, path: str, **options: Any) -> Any:
    async with AsyncClient(transport=ASGITransport(make_app(server)), base_url="http://acm") as client:
        answer = await client.request(method, path, **options)
    assert answer.status_code < 300, answer.text
    return answer.json()


@pytest.fixture
def session(server: ContextServer) -> Session:
    messages = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": lines(10, f"log{at}")} for at in range(NUM_MESSAGES)
    ]
    asyncio.run(asked(server, "POST", SESSIONS, json={"session_id": "s", "messages": messages}))
    return server.store.get("", "s")


def test_a_batch_lets_others_run_and_is_seen_whole(words: SlowWords, server: ContextServer, session: Session) -> None:
    seen = [session.state]
    words.tick = lambda: None if seen[-1] is session.state else seen.append(session.state)
    outcome = sliced(words, server.editor.edit(session, FOLDS, None))
    assert len(outcome.done) == len(FOLDS)
    assert len(set(words.at)) >= len(FOLDS), "control is given back between edits"
    assert len(seen) == 1, "nothing is seen before all of it is stored"
    assert session.state is outcome.state


def test_a_batch_that_fails_late_has_changed_nothing(words: SlowWords, server: ContextServer, session: Session) -> None:
    before = session.state
    with pytest.raises(NotFound, match=r"edits\[7\]"):
        sliced(words, server.editor.edit(session, [*FOLDS, Edit(EditKind.FOLD, "f00000")], None))
    assert session.state is before
    assert len(set(words.at)) >= len(FOLDS)


def test_an_answer_that_is_recorded_during_a_batch_stays(
    words: SlowWords, server: ContextServer, session: Session
) -> None:
    """No lock is held by a request whose answer is under way."""

    def record() -> None:
        if len(words.at) > 4 and len(session.state.entries) == NUM_MESSAGES:
            server.store.save(session, end_turn(append_answer(session.state, ANSWER)))

    words.tick = record
    sliced(words, server.editor.edit(session, FOLDS, None))
    assert [entry.message for entry in session.state.entries[NUM_MESSAGES:]] == [ANSWER]
    assert sum(fragment.hidden for fragment in session.state.fragments) == len(FOLDS)
    session.state.check_integrity()


@pytest.mark.parametrize(
    ("method", "what", "body"),
    [
        ("POST", "edits", {"edits": ASKED}),
        ("POST", "prepare", {"edits": ASKED}),
        ("GET", "context", None),
    ],
)
def test_routes_that_count_a_conversation_let_others_run(
    words: SlowWords, server: ContextServer, session: Session, method: str, what: str, body: Any
) -> None:
    sliced(words, asked(server, method, f"{SESSIONS}/{session.session_id}/{what}", json=body))
    assert len(set(words.at)) >= NUM_MESSAGES


def test_an_import_lets_others_run(words: SlowWords, server: ContextServer, session: Session) -> None:
    copy = asyncio.run(asked(server, "GET", f"{SESSIONS}/s/export"))
    sliced(words, asked(server, "POST", f"{SESSIONS}/s/import?replace=true", json=copy))
    assert len(set(words.at)) >= NUM_MESSAGES
