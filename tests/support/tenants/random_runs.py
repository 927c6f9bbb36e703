"""Random requests of eight tenants, none of which names a session, and how many were given to a wrong one.

All tenants have the same system text, tools, questions and steps, and begin with the same conversations. Most runs open
with the words of a standing context and the model's thanks for it, as clients do that compact. Some of the contexts
have a date. Some of the runs with a date were begun elsewhere: a lookalike has a question, and no answer of this
server. Beside turns there are

    a summary of the first part      a side request, which is a fork of its run
    a compaction                     the same for all of it, and then the run goes on from the summary alone
    a rewind                         a second run that goes on from the middle of one
    two at once                      a run is asked while another waits for its answer, also two that begin alike

Summaries are long, or long and the same for all, or short. In between somebody else may have the summary first. It may
be a person who pastes it into a new run, or into one that goes on. It may be another tenant, whose request is the same
to the byte.

A summary may be asked of a text that two runs share, since one is a rewind of the other. Where a client has changed its
own since, and that is the other's to the word, nobody can tell whose it is. It is counted among `twins`.
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from acmserve.server.identity.families import Families
from acmserve.server.identity.placement import Placement
from acmserve.server.identity.prompt import read_prompt
from acmserve.server.identity.thread_hints import ThreadHints
from tests.support.server.clients import SUMMARY_SYSTEM, SYSTEM, ChatClient

TOPICS = ("harbour", "mill")
TENANTS = [*(f"key-{n}" for n in range(6)), "key-0/salt-1", "key-0/salt-2"]
STANDING = "The archive stands by the river, and has these shelves:\n" + "\n".join(
    f"shelf {n}: ledgers of the years {1700 + n} to {1701 + n}" for n in range(12)
)
THANKS, NOTED = "Thanks, I know the shelves now.", "I have read the notes, and go on from them."
GO_ON = "Please go on with what is left."
COMMON = "What was asked is done in part. " + "The ledgers of the lower shelves were read, and nothing was torn. " * 3
MAX_RUNS, NUM_OPENINGS = 64, 6


@dataclass(eq=False)
class Run:
    """One conversation of one client. `session` is the one that it was given, "" before its first request."""

    tenant: str
    client: ChatClient
    session: str = ""
    num_turns: int = 0


def first_part(client: ChatClient, num_messages: int | None = None, system: str = SUMMARY_SYSTEM) -> ChatClient:
    """What a client sends that has its history summarized, all or its first messages."""
    ask = {"role": "user", "content": "Condense the above, and nothing else."}
    return client.side(system, *client.messages[:num_messages], ask)


def compacted(summary: str, words: str = GO_ON) -> ChatClient:
    """A conversation that a client goes on with from a summary alone."""
    return ChatClient().user(STANDING).answer(THANKS).user(summary).answer(NOTED).user(words)


def standing(day: int = 0) -> ChatClient:
    """A context that all open with, and the model's thanks for it. With a day it is dated."""
    texts = [STANDING, f"Today is day {day}."] if day else [STANDING]
    parts = [{"type": "text", "text": text} for text in texts]
    return ChatClient(messages=[{"role": "user", "content": parts}]).answer(THANKS)


def opening(topic: str, kind: int, number: int) -> ChatClient:
    """How a run begins: with a question that all ask, behind a standing context or not. Each tenant has a date once,
    and so it has what was answered elsewhere, to a conversation that is resumed.
    """
    client = ChatClient() if kind < 2 else standing(number + 1 if kind >= 4 else 0)
    client.user(f"Find every entry about the {topic}, and list them by year.")
    is_resumed = kind in (0, NUM_OPENINGS - 1)
    return client.answer(f"I have read volume {number}.").user("Then go on from there.") if is_resumed else client


def texts_of(client: ChatClient, num_messages: int | None = None) -> list[str]:
    """What a client has in its first messages, however it is spelled."""
    contents = [message["content"] for message in client.messages[:num_messages]]
    return [
        text.strip()
        for content in contents
        for text in ([content] if isinstance(content, str) else [part["text"] for part in content])
    ]


class RandomRuns:
    """Plays requests on `Families`, each as the tenant that `find_tenant` says. `counts` has what came of them."""

    def __init__(self, find_tenant: Callable[[str], str] = lambda tenant: tenant, seed: int = 23) -> None:
        self.families = Families()
        self.counts: Counter[str] = Counter()
        self._find_tenant = find_tenant
        self._rng = random.Random(seed)
        self._runs: list[Run] = []
        self._num_runs = dict.fromkeys(TENANTS, 0)
        self._owners: dict[str, str] = {}
        self._holders: dict[str, Run] = {}
        self._summaries: dict[str, Run] = {}
        self._served: dict[str, list[str]] = {}
        self._number = 0

    def play(self, num_requests: int) -> Counter[str]:
        """So many requests. Counts `wrong tenant`, `wrong session` and what else there was."""
        while self._number < num_requests:
            if len(self._runs) < MAX_RUNS or self._rng.random() < 0.02:
                self._begin()
            run, dice = self._rng.choice(self._runs), self._rng.random()
            if len(run.client.messages) > 6 and dice < 0.1:
                self._sum_up(run, self._rng.randrange(3, len(run.client.messages)), f"In short: {self._number}.")
            elif run.session and len(run.client.messages) > 4 and dice < 0.21:
                self._compact(run)
            elif len(run.client.messages) > 8 and dice < 0.25:
                self._rewind(run)
            elif dice > 0.98:
                self._begin_two()
            elif dice > 0.92:
                other = self._rng.choice(self._runs)
                self._turn(run, None if other is run else partial(self._turn, other))
            else:
                self._turn(run)
        self.families.check_integrity()
        return self.counts

    def _begin(self, tenant: str | None = None, client: ChatClient | None = None) -> Run:
        if len(self._runs) >= MAX_RUNS:
            self._runs.pop(self._rng.randrange(len(self._runs)))
        tenant = tenant or self._rng.choice(TENANTS)
        client = client or opening(self._rng.choice(TOPICS), self._rng.randrange(NUM_OPENINGS), self._num_runs[tenant])
        run = Run(tenant, client)
        self._num_runs[tenant] += 1
        self._runs.append(run)
        return run

    def _ask(self, run: Run, client: ChatClient, answer: str, meanwhile: Callable[[], None] | None = None) -> Placement:
        """One request that is answered, and what is asked meanwhile."""
        self._number += 1
        prompt = read_prompt(client.body)
        assert prompt is not None
        tenant = self._find_tenant(run.tenant)
        found = self.families.find(tenant, prompt)
        family = f"acm-{self._number}" if found is None else found.family
        self.counts["by summary"] += found is not None and found.by_summary
        placement = self.families.place(tenant, family, prompt, ThreadHints(), is_explicit=False)
        self.counts["wrong tenant"] += self._owners.setdefault(placement.thread.engine_id, run.tenant) != run.tenant
        if meanwhile is not None:
            meanwhile()
        self.families.answered(tenant, placement, {"role": "assistant", "content": answer})
        return placement

    def _begin_two(self) -> None:
        """Two runs that begin alike, the second while the first one waits for its answer. None is resumed, for that
        would be the same request again.
        """
        tenant = self._rng.choice(TENANTS)
        client = opening(self._rng.choice(TOPICS), self._rng.randrange(1, NUM_OPENINGS - 1), self._num_runs[tenant])
        first, second = (self._begin(tenant, copy.deepcopy(client)) for _ in range(2))
        self._turn(first, partial(self._go_on, second))

    def _go_on(self, run: Run) -> None:
        """A turn, or two and a rewind."""
        self._turn(run)
        if self._rng.random() < 0.5:
            self._turn(run)
            self._rewind(run)

    def _turn(self, run: Run, meanwhile: Callable[[], None] | None = None) -> None:
        """The next turn of a run: its session is its own, and the one that it had."""
        answer = f"Answer {self._number} about it."
        session = self._ask(run, run.client, answer, meanwhile).thread.session_id
        self._served[session] = texts_of(run.client)
        run.session = run.session or session
        is_wrong = session != run.session or self._holders.setdefault(session, run) is not run
        self.counts["wrong session"] += is_wrong
        self.counts["turns"] += 1
        run.client.answer(answer).user(f"Step {run.num_turns}: look again.")
        run.num_turns += 1
        if run.num_turns % 5 == 4:
            self._rng.choice(CHANGES)(run.client)
        if run.num_turns > 40 and run in self._runs:
            self._runs.remove(run)

    def _sum_up(self, run: Run, num_messages: int | None, summary: str) -> bool:
        """A summary of a run. Whether it was a fork of its session."""
        placement = self._ask(run, first_part(run.client, num_messages), summary)
        family, is_fork = placement.thread.family, placement.thread.engine_id == run.session
        asked = texts_of(run.client, num_messages)
        is_of, is_mine = (self._served.get(name, [])[: len(asked)] == asked for name in (family, run.session))
        is_twins = family != run.session and is_of and not is_mine
        is_wrong = family != run.session and self._summaries.setdefault(family, run) is not run
        is_wrong = is_wrong or self._holders.get(family, run) is not run
        self.counts["wrong session"] += is_wrong and not is_twins
        self.counts["twins"] += is_twins
        self.counts["forks"] += is_fork
        return is_fork

    def _compact(self, run: Run) -> None:
        """The client has all of a run summarized, and goes on from that alone. Somebody may come in between."""
        number, kind = self._number, self._rng.randrange(6)
        summary = f"{COMMON}Left is ledger {number}."
        if kind == 4:
            summary = COMMON
        elif kind == 5:
            summary = self._rng.choice(["Done.", f"Done: {number}."])
        is_certain = self._sum_up(run, None, summary) and kind < 4
        client = compacted(summary, GO_ON if self._rng.random() < 0.7 else f"Go on with {number}.")
        who = self._rng.randrange(8)
        if who == 0:
            self._turn(self._begin(run.tenant, ChatClient().user(STANDING).answer(THANKS).user(summary)))
            is_certain = False
        elif who == 1:
            other = self._rng.choice([each for each in self._runs if each is not run and each.session])
            other.client.user(summary)
            self._turn(other)
            is_certain = is_certain and other.tenant != run.tenant
        elif who == 2:
            tenant = self._rng.choice([each for each in TENANTS if each != run.tenant])
            self._turn(self._begin(tenant, copy.deepcopy(client)))
        elif who == 3:
            self._turn(run)
            is_certain = False
        session, num_before = run.session, self.counts["by summary"]
        run.client, run.session = client, session if is_certain else ""
        self._turn(run)
        self.counts["compactions"] += 1
        self.counts["certain"] += is_certain
        self.counts["wrong session"] += self.counts["by summary"] > num_before and run.session != session

    def _rewind(self, run: Run) -> None:
        """A second run from the middle of one: it has other words of a person there."""
        client = copy.deepcopy(run.client)
        del client.messages[self._rng.randrange(2, len(client.messages) - 2) :]
        if client.messages[-1]["role"] == "user":
            client.messages.pop()
        self._turn(self._begin(run.tenant, client.user(f"Look at ledger {self._number} instead.")))


def change_system(client: ChatClient) -> None:
    """Another git status, as on a resume."""
    client.system = SYSTEM + "\nGit status: nine files changed."


def insert_message(client: ChatClient) -> None:
    """A reminder in front."""
    client.messages.insert(1, {"role": "system", "content": "A reminder: the shelves are dusted on Mondays."})


def respell(client: ChatClient) -> None:
    """Strings as parts, with cache_control and spaces around, other ids of calls."""
    for message in client.messages:
        if isinstance(message.get("content"), str):
            text = {"type": "text", "text": f" {message['content']}\n", "cache_control": {"type": "ephemeral"}}
            message["content"] = [text]
        if "tool_call_id" in message:
            message["tool_call_id"] += "-x"
        for call in message.get("tool_calls", ()):
            call["id"] += "-x"


CHANGES = (change_system, insert_message, respell)
