"""Finds the session that goes on from a summary: a client that compacts may keep nothing else of its conversation.

    main thread   [system A][tools]   u0 a1 u2 ... u98                asked last before the summary
    its fork      [system B]          u0 a1 u2 ... u98 "Sum it up."   answered with S
    request       [system A][tools]   e0 k1 S k3 u99                  nothing of u0 ... u98, but S

S is an answer that this server gave, so it names the session whose fork gave it. It does where nobody can be wrong:

- S is all of one text, and long. Short answers are given many times, and a summary in a text of somebody's own may be
  a quotation.
- No other session of the tenant gave S lately. Two that did are told apart by nothing, then and later.
- The main thread is what it was when the fork was asked. A conversation that went on left its summary aside. It may
  have gone on by this very request, which comes again while the first one waits for its answer.
- The request has the tools of the main thread, and its system text.
- The model speaks behind S, or says S, although no request had S before. So a client has put it there. A person who
  pastes S has no word of a model behind it, and S names nobody from then on.

Decision: the request belongs to the main thread, since it is the next turn of the conversation. Budget and totals go
on, and each edit whose text is gone is told. A request that fails leaves S as it was, so that it can be sent again.

By the same hashes it says whether a request has another session's answer, so that it is not taken for a first turn.
Holds hashes, no text. It knows threads, no store.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import compress

from acmserve.errors import IntegrityError
from acmserve.server.identity.beginnings import has_first_part
from acmserve.server.identity.fingerprint import Fingerprint, compare_history
from acmserve.server.identity.names_by_hash import NamesByHash
from acmserve.server.identity.placement import KnownThread
from acmserve.server.identity.prompt import PromptUnits
from acmserve.server.identity.threads import MAIN

MAX_GIVEN = 256
"""Long texts of one tenant of which it is known who gave them."""
Threads = Mapping[str, KnownThread]
"""Those of one session, by name."""


class Summaries:
    """Long answers that one tenant's conversations were given, by the hashes of their text.

    `_ours` lists conversations by an answer that stands in them. `_givers` has the session that gave a long one lately,
    "" for one that names nobody any more.
    """

    def __init__(self) -> None:
        self._names = NamesByHash()
        self._ours = NamesByHash()
        self._givers: dict[int, str] = {}

    def __len__(self) -> int:
        """Texts that are known."""
        return len(self._names)

    def add(self, name: str, conversation: Fingerprint) -> None:
        """Let a conversation be known by what it was answered."""
        self._names.enter(name, _marks(conversation))
        self._ours.enter(name, {conversation.ours} - {0})

    def remove(self, name: str, conversation: Fingerprint) -> None:
        """Let it be known no more."""
        self._names.leave(name, _marks(conversation))
        self._ours.leave(name, {conversation.ours} - {0})

    def find(
        self, prompt: PromptUnits, sessions: Mapping[str, KnownThread], families: Mapping[str, Threads]
    ) -> str | None:
        """The session that a request goes on with, by the summary in it. None where that is not certain.

        `sessions` has the threads of the tenant by name, `families` by session and name.
        """
        found = {
            thread.family
            for place, thread in self._forks(prompt, sessions)
            if any(prompt.answers[place:])
            and self._givers.get(thread.conversation.said, thread.family) == thread.family
            and _names_its_session(thread, families[thread.family], prompt)
        }
        return found.pop() if len(found) == 1 else None

    def has_anothers(self, prompt: PromptUnits, sessions: Mapping[str, KnownThread], name: str) -> bool:
        """Whether a request has what this server has answered to another session than that of the thread `name`.

        What is said to a thread that waits for its answer may be a quotation of what another one said lately.
        """
        thread = sessions[name]
        return any(
            sessions[other].family != thread.family
            for listed in ((self._ours, self._names) if thread.conversation.answer else (self._ours,))
            for mark in listed.keys() & prompt.weights.keys()
            for other in listed[mark]
        )

    def pass_over(self, family: str, prompt: PromptUnits, sessions: Mapping[str, KnownThread]) -> None:
        """A session takes a request in: a summary in it names no other session any more."""
        for _, thread in self._forks(prompt, sessions):
            if thread.family != family:
                self._note(thread.conversation.said, "")

    def compare(self, conversation: Fingerprint, family: str) -> None:
        """A session has answered a conversation: where another one gave the same text, it names neither any more."""
        if conversation.said:
            known = self._givers.get(conversation.said, family)
            self._note(conversation.said, family if known == family else "")

    def check_integrity(self, sessions: Mapping[str, KnownThread]) -> None:
        """Raise `IntegrityError` with the numbers unless these are listed, and forks alone have summed another up."""
        self._names.check_integrity("summaries", sessions, lambda thread: _marks(thread.conversation))
        self._ours.check_integrity("answers", sessions, lambda thread: {thread.conversation.ours} - {0})
        num_main = sum(thread.summed is not None and not thread.is_fork for thread in sessions.values())
        if num_main or len(self._givers) > MAX_GIVEN:
            raise IntegrityError(f"summaries: {num_main} are no forks, {len(self._givers)} texts of {MAX_GIVEN}")

    def _note(self, said: int, family: str) -> None:
        self._givers.pop(said, None)
        self._givers[said] = family
        if len(self._givers) > MAX_GIVEN:
            del self._givers[next(iter(self._givers))]

    def _forks(self, prompt: PromptUnits, sessions: Mapping[str, KnownThread]) -> Iterator[tuple[int, KnownThread]]:
        """Those that gave a text which stands in a request, with its place. All are looked up at C speed."""
        if not self._names:
            return
        is_known = map(self._names.__contains__, prompt.digests)
        for place in compress(range(len(prompt)), is_known):
            for name in self._names[prompt.digests[place]]:
                if sessions[name].summed is not None:
                    yield place, sessions[name]


def summed_by(thread: KnownThread, main: KnownThread | None, prompt: PromptUnits) -> Fingerprint | None:
    """The main thread's conversation, where a request that its fork was given is about it, all or its first part."""
    if main is None or thread is main or not thread.is_fork or prompt.tools:
        return None
    is_about = compare_history(main.conversation, prompt).continues or has_first_part(main.conversation, prompt)
    return main.conversation if is_about else None


def _marks(conversation: Fingerprint) -> frozenset[int]:
    """The hashes of a long answer: as another's words, and as the model's."""
    return conversation.answer | {conversation.said} if conversation.said else frozenset()


def _names_its_session(fork: KnownThread, threads: Threads, prompt: PromptUnits) -> bool:
    main = threads.get(MAIN)
    if main is None or not (main.conversation is fork.summed or _comes_again(main.conversation, prompt)):
        return False
    return main.conversation.tools == prompt.tools and main.conversation.system.is_like(prompt.system)


def _comes_again(conversation: Fingerprint, prompt: PromptUnits) -> bool:
    """Whether a conversation is this request, word for word, and nobody has answered it yet."""
    return not conversation.answer and conversation.chain[-1:] == array("q", prompt.chain[-1:])
