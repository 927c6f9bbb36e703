"""`make clients`: a fold of text that a client keeps, where it rewrites the history around that text.

The matrix folds what tools have said, which a compaction leaves out. Codex keeps what its user said through one, and
aider sends its files behind a history that grows in front of them. Each test ends with its control. Once the fold is
restored, the same client is served more tokens, by about as many as the fold had hidden.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.clients import facts
from tests.support.clients.conversation import AgentClient, Conversation, write_errand
from tests.support.clients.drivers.aider import Aider
from tests.support.clients.drivers.codex import Codex
from tests.support.clients.errand import SUMMARY_MARK
from tests.support.clients.installed import CLIENTS, install
from tests.support.clients.matrix import Row
from tests.support.clients.recorder import Exchange, recorder
from tests.support.clients.sessions_api import Fold, SessionsApi
from tests.support.clients.walk import Walk, is_held

pytestmark = pytest.mark.skipif(
    not os.environ.get("ACMSERVE_CLIENTS"), reason="`make clients` installs agents from registries"
)

OF_THE_USER = "Remark 7: the ferry waits"
REMARKS = "\n".join(f"Remark {line}: the ferry waits for the miller's {line * 5 % 11} sacks." for line in range(40))
OF_THE_FILE = "Note 7: the mill stands"
NUM_TURNS = 4
LONG_ERRAND = 8
"""Steps that bring Codex over the limit at which it compacts, the fold counted."""


@contextmanager
def walk_of(client: AgentClient, url: str, name: str) -> Iterator[tuple[Walk, Conversation]]:
    """A conversation in an empty folder, by a recorder of its own."""
    install(client.package)
    folder = CLIENTS / "walks" / f"{client.package.folder}-folds" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with recorder(url, folder / "recording.jsonl") as recording:
        walk = Walk(client, recording, SessionsApi(url), folder, Row(client.name, client.package.version))
        conversation = client.start(recording.url, folder)
        try:
            yield walk, conversation
        finally:
            conversation.close()


def main_of(walk: Walk, made: list[Exchange]) -> list[Exchange]:
    return [exchange for exchange in made if not walk.is_side(exchange)]


def ask(walk: Walk, conversation: Conversation, number: int, num_steps: int = 1, more: str = "") -> list[Exchange]:
    """An errand. The requests of the conversation itself."""
    write_errand(walk.folder / "work", number, num_steps)
    _, made = walk.turn(conversation, f"errand {number}: {num_steps} steps{more}")
    assert not walk.row.failed()
    return main_of(walk, made)


def fold(walk: Walk, made: list[Exchange], words: str) -> tuple[str, Fold]:
    """Fold the message that has these words, in the session of these requests."""
    session = facts.session_of(made[-1])
    assert session is not None
    folded = walk.api.fold(session, words)
    assert folded.num_tokens > 200
    return session, folded


def check_held(walk: Walk, session: str, folded: Fold, made: list[Exchange]) -> None:
    """The client has sent the folded text in every one of these requests, and the fold holds."""
    assert made
    assert all(facts.mentions(exchange, folded.words) for exchange in made)
    assert is_held(folded, made)
    assert {facts.session_of(exchange) for exchange in made} == {session}
    assert walk.api.num_hidden(session) == 1


def check_control(walk: Walk, conversation: Conversation, folded: Fold, last: Exchange, number: int) -> None:
    """Once it is restored, the next prompt is longer by what was hidden: so the fold was in the served prompts."""
    session = facts.session_of(last)
    assert session is not None
    walk.api.restore(session, folded)
    made = ask(walk, conversation, number)
    grown = (facts.prompt_tokens(made[0]) or 0) - (facts.prompt_tokens(last) or 0)
    assert grown > folded.num_tokens - 60, (grown, folded)


def test_a_fold_of_the_users_words_outlives_codexs_compaction(errands: str) -> None:
    with walk_of(Codex(), errands, "compaction") as (walk, conversation):
        session, folded = fold(walk, ask(walk, conversation, 1, more=f"\n{REMARKS}"), OF_THE_USER)
        check_held(walk, session, folded, ask(walk, conversation, 2, LONG_ERRAND))
        num_before = len(walk.recording.exchanges)
        write_errand(walk.folder / "work", 50, 1)
        conversation.compact()
        since = facts.asked(walk.recording.exchanges[num_before:])
        assert any(SUMMARY_MARK in facts.said(exchange) for exchange in since), "it has compacted"
        made = ask(walk, conversation, 3)
        check_held(walk, session, folded, [*main_of(walk, since), *made])
        check_control(walk, conversation, folded, made[-1], 4)


def test_a_fold_of_a_file_holds_while_aiders_history_grows_in_front_of_it(errands: str) -> None:
    with walk_of(Aider(), errands, "files") as (walk, conversation):
        session, folded = fold(walk, ask(walk, conversation, 1), OF_THE_FILE)
        made: list[Exchange] = []
        for number in range(2, 2 + NUM_TURNS):
            made += ask(walk, conversation, number)
        check_held(walk, session, folded, made)
        check_control(walk, conversation, folded, made[-1], 9)
