"""Conversations of the matrix that are long: a budget over 100 turns, a window that overflows, a changed git status."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from acmserve.server.identity.thread_hints import read_hints
from tests.support.clients import facts
from tests.support.clients.conversation import WindowedClient, write_errand
from tests.support.clients.errand import SUMMARY_MARK
from tests.support.clients.errand_server import WINDOW
from tests.support.clients.matrix import require
from tests.support.clients.recorder import Exchange
from tests.support.clients.walk import Walk

NUM_TURNS = 100
BUDGET_ROOM = 6_000
LINES_ROOM = 1_000
"""Room of a client whose turns have no results of tools."""
OVERFLOW_LINES = 530
LONG_LINES = 4_200
"""Lines of the user that the window does not hold."""
ENDS_THERE = (
    "It ends the turn where the vendor's word `context_length_exceeded` comes. "
    "It then takes as used the window that it assumes, less all tokens of all its answers. "
    "Where that is much, its next turn compacts. Behind many answers it is nothing: the same history is sent again. "
    "Behind a refusal of its first request it compacts, as `refusal` says. "
    "It takes a model that it does not know for one with a long window, if its configuration does not say otherwise."
)
GOES_ON_LATER = "It ends the turn. The next turn compacts, and goes on."
_FIRST, _FULL, _EARLY, _GIT = 101, 9, 8, 6


def walk_budget(walk: Walk) -> None:
    """A hundred turns under a budget that a tenth of them fill: of the user, or steps of one errand.

    A client whose turns are processes takes steps.
    """
    work = walk.folder / "work"
    numbers = range(_FIRST, _FIRST + NUM_TURNS)
    said_at_once = f"errand {_FIRST}: {NUM_TURNS} steps" if "steps" in walk.client.can else ""
    if "lines" in walk.client.can:
        said_at_once = "\nPlease do ".join(f"errand {number}: 1 steps" for number in numbers)
    for number in numbers:
        write_errand(work, number, NUM_TURNS if "steps" in walk.client.can and number == _FIRST else 1)
    conversation = walk.client.start(walk.recording.url, walk.folder)
    try:
        with walk.row.check("budget"):
            if said_at_once:
                setter = BudgetSetter(walk)
                said, _ = walk.turn(conversation, said_at_once)
                setter.join()
                require(said.error is None, said.error or "")
            else:
                _, made = walk.turn(conversation, f"errand {_FIRST}: 1 steps")
                setter = BudgetSetter(walk, made)
                for number in numbers[1:]:
                    said, _ = walk.turn(conversation, f"errand {number}: 1 steps")
                    require(said.error is None, f"turn {number - _FIRST + 1}: {said.error}")
            require(setter.since is not None, "the answers name no session, so that none can have a budget")
            check_held(main_of(walk)[setter.since :], setter.max_tokens)
    finally:
        conversation.close()


class BudgetSetter:
    """Gives the session a budget once an answer names it: at once, or while the client's only task goes on."""

    def __init__(self, walk: Walk, made: Sequence[Exchange] | None = None) -> None:
        self.since: int | None = None
        self.max_tokens = 0
        self._walk = walk
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if made is not None:
            self._set(made)
            require(self.since is not None, "the answers name no session, so that none can have a budget")
            return
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def join(self) -> None:
        """The client's task has ended."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _look(self) -> None:
        while self.since is None and not self._ended.wait(0.2):
            self._set(main_of(self._walk))

    def _set(self, made: Sequence[Exchange]) -> None:
        session = facts.session_of(made[-1]) if made else None
        if session is not None:
            room = LINES_ROOM if "lines" in self._walk.client.can else BUDGET_ROOM
            self.max_tokens = (facts.prompt_tokens(made[0]) or 0) + room
            self._walk.api.set_budget(session, self.max_tokens)
            self.since = len(main_of(self._walk)) + 1


def main_of(walk: Walk) -> list[Exchange]:
    """The requests of the conversation itself, without titles and the like."""
    return [exchange for exchange in facts.asked(walk.recording.exchanges) if not walk.is_side(exchange)]


def check_held(exchanges: Sequence[Exchange], max_tokens: int) -> None:
    """A budget was reached, and held in every request. Raises CheckFailed."""
    require(len(exchanges) >= NUM_TURNS - 20, f"{len(exchanges)} requests under the budget")
    unmet = [facts.unmet_of(exchange) for exchange in exchanges]
    told = [one for one in unmet if one is not None]
    require(not told, f"{len(told)} of {len(unmet)} answers: {str(told[:1])[:200]}")
    longest = max(facts.prompt_tokens(exchange) or 0 for exchange in exchanges)
    require(longest <= max_tokens, f"{longest} tokens were served under a budget of {max_tokens}")
    require(sum(map(facts.evicted_of, exchanges)), f"nothing was evicted for a budget of {max_tokens} tokens")


def walk_overflow(walk: Walk) -> None:
    """One errand that the window cannot hold. A client that ends the turn there is told to go on."""
    steps = walk.client.overflow_steps
    write_errand(walk.folder / "work", _FULL, steps, OVERFLOW_LINES)
    conversation = walk.client.start(walk.recording.url, walk.folder)
    with walk.row.check("overflow"):
        said = conversation.say(f"Please do errand {_FULL}: {steps} steps")
        made = facts.asked(walk.recording.exchanges)
        has_summary = any(SUMMARY_MARK in facts.said(one) for one in made)
        if said.error is not None and not has_summary and any(one.status >= 400 for one in made):
            said = conversation.say("Please go on.")
            made = facts.asked(walk.recording.exchanges)
            walk.row.note("overflow", ENDS_THERE if said.error is not None else GOES_ON_LATER)
        refused = [one.answer[:200] for one in made if one.status >= 400]
        asked = [one for one in made if SUMMARY_MARK in facts.said(one)]
        require(asked, f"no summary was asked for; {len(made)} requests, refused: {refused[:1]}; {said.error}")
        require("done" in said.text, f"the turn ended with {said.error or said.text[:100]!r}")
    with walk.row.check("compaction"):
        found = {facts.session_of(one) for one in main_of(walk) if one.status < 400}
        require(len(found) == 1, f"{len(found)} sessions behind an overflow: {sorted(map(str, found))}")
    conversation.close()


def walk_refusal(walk: Walk) -> None:
    """The first request of all is too long for the window. What a client makes of a refusal is seen before it has
    counted any token.

    In `walk_overflow` the same server refuses in the same words, behind many answers.
    """
    write_errand(walk.folder / "work", _EARLY, 1)
    conversation = walk.client.start(walk.recording.url, walk.folder)
    with walk.row.check("refusal"):
        lines = (f"{line}: the river carries {line * 7 % 13} boats past the mill" for line in range(LONG_LINES))
        said = conversation.say("\n".join([*lines, f"Please do errand {_EARLY}: 1 steps"]))
        require(walk.asked(), "no request was recorded")
        served = [one for one in walk.asked() if one.status < 400]
        require(not served, f"{len(served)} of {len(walk.asked())} requests were served")
        said = conversation.say("Please go on.")
        kinds = [read_hints(one.headers).kind for one in walk.asked() if one.status < 400]
        require("compaction" in kinds, f"it has compacted nothing: {said.error}")
        require("done" in said.text, f"the turn ended with {said.error or said.text[:100]!r}")
    conversation.close()


def walk_window(walk: Walk, client: WindowedClient) -> None:
    """The same errand, once the client's configuration has the window. Its control is `walk_overflow`, without it."""
    steps = walk.client.overflow_steps
    write_errand(walk.folder / "work", _FULL, steps, OVERFLOW_LINES)
    conversation = client.start_told(walk.recording.url, walk.folder, WINDOW)
    with walk.row.check("window"):
        said = conversation.say(f"Please do errand {_FULL}: {steps} steps")
        made = facts.asked(walk.recording.exchanges)
        refused = [one.answer[:200] for one in made if one.status >= 400]
        require(not refused, f"{len(refused)} of {len(made)} requests were refused: {refused[:1]}")
        require(any(SUMMARY_MARK in facts.said(one) for one in made), f"no summary in {len(made)} requests")
        require("done" in said.text, f"the turn ended with {said.error or said.text[:100]!r}")
    conversation.close()


def walk_git_status(walk: Walk) -> None:
    """The tree changes between two turns, and the client compacts: what was served before is not computed again."""
    work = walk.folder / "work"
    for number in (_GIT, _GIT + 1, _GIT + 2):
        write_errand(work, number, 3)
    _git(work, "init", "--quiet")
    _git(work, "add", ".")
    _git(work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", "The mill.")
    conversation = walk.client.start(walk.recording.url, walk.folder)
    walk.turn(conversation, f"errand {_GIT}: 3 steps")
    (work / "boats.txt").write_text("Seven boats.\n")
    _, made = walk.turn(conversation, f"errand {_GIT + 1}: 2 steps")
    walk.check_old_tokens(made[:1], "after the changed git status")
    num_before = len(walk.recording.exchanges)
    conversation.compact()
    made = facts.asked(walk.recording.exchanges[num_before:])
    walk.check_old_tokens(made, "in the compaction")
    _, made = walk.turn(conversation, f"errand {_GIT + 2}: 1 steps")
    walk.check_old_tokens(made[:1], "after the compaction")
    conversation.close()


def _git(work: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=work, check=True, capture_output=True)
