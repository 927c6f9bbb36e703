"""What the matrix does with every client, in one conversation, and what it then looks for in the recording.

    errand 1: three steps, the first one long      answers, session
    errand 2: two steps                            turns
    errand 3, in a new process                     resume, cached
    a fold of the first step by our own API
    errand 4, with a helper. Title requests again  sub-agent, fold
    a fold of the last step
    the client's own compaction, then errand 5     compaction, fold

A fold holds as long as the client sends the text. A compaction that leaves it out ends it, and the answer says so.
Of what a summary computes, those lines are new that no earlier request had. The rest is old, and was served before.

It knows clients by what they can do (`can`), and their requests by what stands in them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from acmserve.models.smollm2 import prepare
from tests.support import http
from tests.support.clients import facts
from tests.support.clients.conversation import AgentClient, Conversation, Said, write_errand
from tests.support.clients.errand import SUMMARY_MARK
from tests.support.clients.matrix import Row, require
from tests.support.clients.recorder import Exchange, Recorder
from tests.support.clients.sessions_api import Fold, SessionsApi

LONG_LINES = 100
OF_LONG_STEP = "1.1.7: the river"
OF_LAST_STEP = "4.1.7: the river"
MAX_OLD_TOKENS = 200


@dataclass
class Walk:
    """One client's conversation."""

    client: AgentClient
    recording: Recorder
    api: SessionsApi
    folder: Path
    row: Row
    main: str | None = None
    folds: list[Fold] = field(default_factory=list)

    def run(self) -> None:
        """The whole of it. What fails is noted, and the walk goes on."""
        for number in (1, 2, 3, 4, 5, 40, 50):
            first = LONG_LINES if number == 1 else 0
            write_errand(self.folder / "work", number, 3, first_lines=first)
        conversation = self.client.start(self.recording.url, self.folder)
        try:
            self._find(conversation)
            if "turns" in self.client.can:
                self._go_on(conversation)
            if {"tools", "turns"} <= self.client.can:
                self._fold(conversation)
            if "compaction" in self.client.can:
                self._compact(conversation)
        finally:
            conversation.close()

    def turn(self, conversation: Conversation, words: str) -> tuple[Said, list[Exchange]]:
        """A turn, and the requests that it made."""
        num_before = len(self.recording.exchanges)
        said = conversation.say(f"Please do {words}")
        made = facts.asked(self.recording.exchanges[num_before:])
        with self.row.check("answers"):
            require(said.error is None, f"{words}: {said.error}")
            require("done" in said.text.lower(), f"{words}: the client's last words are {said.text[:100]!r}")
        return said, made

    def asked(self) -> list[Exchange]:
        """The requests for an answer that were recorded so far."""
        return facts.asked(self.recording.exchanges)

    def check_main(self, name: str, made: Sequence[Exchange], number: int) -> None:
        """The requests of an errand are all of the main session."""
        with self.row.check(name):
            own = [
                exchange
                for exchange in made
                if facts.mentions(exchange, f"errand {number}: ") and not self.is_side(exchange)
            ]
            require(own, "no request was recorded")
            found = {facts.session_of(exchange) for exchange in own}
            require(None not in found, f"{sum(not facts.session_of(one) for one in own)} of {len(own)} have no session")
            require(found == {self.main}, f"other sessions: {sorted(map(str, found))}, and {self.main} before")

    def check_old_tokens(self, made: Sequence[Exchange], when: str) -> None:
        """Each of these requests computes few tokens that are old."""
        everything = self.asked()
        with self.row.check("old tokens"):
            require(made, f"{when}: no request was recorded")
            for exchange in made:
                earlier = everything[: everything.index(exchange)]
                self._require_few(exchange, facts.new_text(earlier, exchange), when)

    def check_summaries(self) -> None:
        """The client's own requests for a summary, if it made any. Its instruction is computed for each, being new."""
        conversation: list[Exchange] = []
        summaries: list[Exchange] = []
        for exchange in (one for one in self.asked() if one.status == 200):
            if SUMMARY_MARK not in facts.said(exchange):
                conversation.append(exchange)
                continue
            with self.row.check("old tokens"):
                new = facts.added_text(conversation, summaries, exchange)
                self._require_few(exchange, new, "in a summary")
            summaries.append(exchange)

    def _require_few(self, exchange: Exchange, new: str, when: str) -> None:
        computed, num_new = facts.computed_tokens(exchange), len(_tokenizer().encode(new))
        require(computed is not None, f"{when}: no receipt")
        old = (computed or 0) - num_new
        require(old <= MAX_OLD_TOKENS, f"{when}: {computed} tokens computed, {num_new} of them new")

    def is_side(self, exchange: Exchange) -> bool:
        """Whether it stands beside the conversation: without tools where the client offers some, or for a summary."""
        is_bare = "tools" in self.client.can and not facts.offers_tools(exchange)
        return is_bare or SUMMARY_MARK in facts.said(exchange)

    def _find(self, conversation: Conversation) -> None:
        said, made = self.turn(conversation, "errand 1: 3 steps")
        if "turns" not in self.client.can:
            self._check_cached(said)
        with self.row.check("session"):
            main = [exchange for exchange in made if not self.is_side(exchange)]
            require(main, "no request was recorded")
            self.main = facts.session_of(main[-1])
            require(self.main, "the answers name no session")
            require(self.main in self.api.ids(), f"{self.main} is not listed")
        self.check_main("session", made, 1)

    def _go_on(self, conversation: Conversation) -> None:
        _, made = self.turn(conversation, "errand 2: 2 steps")
        self.check_main("turns", made, 2)
        conversation.restart()
        said, made = self.turn(conversation, "errand 3: 2 steps")
        self.check_main("resume", made, 3)
        self._check_cached(said)

    def _check_cached(self, said: Said) -> None:
        if "usage" in self.client.can:
            with self.row.check("cached"):
                require(said.cached_tokens, f"the client shows {said.cached_tokens}")

    def _fold(self, conversation: Conversation) -> None:
        main = [exchange for exchange in facts.asked(self.recording.exchanges) if not self.is_side(exchange)]
        num_before = facts.prompt_tokens(main[-1]) or 0
        num_hidden = 0
        with self.row.check("fold"):
            require(self.main, "no session is known")
            self.folds.append(self.api.fold(str(self.main), OF_LONG_STEP))
            num_hidden = self.folds[0].num_tokens
            for title in (one for one in facts.asked(self.recording.exchanges) if self.is_side(one)):
                send_again(self.api.url, title)
                require(self.api.num_hidden(str(self.main)), "a side request unfolded the session")
        helper = "sub-agent" in self.client.can
        _, made = self.turn(conversation, f"errand 4: 1 steps{', helper' if helper else ''}")
        own = [exchange for exchange in made if facts.mentions(exchange, "errand 4: ") and not self.is_side(exchange)]
        if helper:
            self._check_helper(made)
        with self.row.check("fold"):
            require(self.main, "no session is known")
            require(self.api.num_hidden(str(self.main)), "the session is unfolded after the next turn")
            for exchange in own:
                served = facts.prompt_tokens(exchange) or 0
                require(
                    served < num_before - num_hidden // 2, f"{served} tokens served after {num_before} - {num_hidden}"
                )

    def _check_helper(self, made: Sequence[Exchange]) -> None:
        with self.row.check("sub-agent"):
            theirs = [
                one for one in made if facts.mentions(one, "errand 40: ") and not facts.mentions(one, "errand 4: ")
            ]
            require(theirs, "the client started no helper")
            found = {facts.session_of(one) for one in theirs}
            require(None not in found, "the helper's answers name no session")
            require(len(found) == 1, f"the helper has {len(found)} sessions")
            require(self.main not in found, "the helper is in the main session")
        self.check_main("sub-agent", made, 4)

    def _compact(self, conversation: Conversation) -> None:
        num_before = len(self.recording.exchanges)
        with self.row.check("fold"):
            require(self.main, "no session is known")
            self.folds.append(self.api.fold(str(self.main), OF_LAST_STEP))
        conversation.compact()
        _, made = self.turn(conversation, "errand 5: 1 steps")
        since = facts.asked(self.recording.exchanges[num_before:])
        with self.row.check("compaction"):
            require(any(SUMMARY_MARK in facts.said(one) for one in since), "the client asked for no summary")
        self.check_main("compaction", made, 5)
        with self.row.check("fold"):
            held = [fold for fold in self.folds if is_held(fold, [one for one in since if not self.is_side(one)])]
            num_hidden = self.api.num_hidden(str(self.main))
            require(num_hidden >= len(held), f"{num_hidden} fragments are hidden, the client sends {len(held)} of them")


@cache
def _tokenizer() -> PreTrainedTokenizerBase:
    """That of the model of errands."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(prepare())
    return tokenizer


def is_held(fold: Fold, exchanges: Sequence[Exchange]) -> bool:
    """Whether the fold is in force at the end of these main requests. Raises CheckFailed where its end is silent."""
    for exchange in exchanges:
        has_text, is_told = facts.mentions(exchange, fold.words), fold.fragment in facts.dropped(exchange)
        require(not (has_text and is_told), f"{fold.words!r} is unfolded, though the client sends it")
        require(has_text or is_told, f"{fold.words!r} is gone, and no answer says that its fold is")
        if is_told:
            return False
    return True


def send_again(url: str, exchange: Exchange) -> int:
    """The same request once more, to this server. Returns the status of its answer."""
    kept = {
        name: value
        for name, value in exchange.headers.items()
        if name not in ("host", "content-length", "connection", "accept-encoding")
    }
    return http.post(url + exchange.path, json=exchange.body, headers=kept).status_code
