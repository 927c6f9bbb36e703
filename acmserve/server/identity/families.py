"""The conversations that this server knows: families of threads by session id, and an index of their contents.

    tenant A   "agent-7"   main  [conversation]      side "agent-7~task-1a2b"  [conversation]  ...
               "acm-4f.."  main  [conversation]
    tenant B   "agent-7"   main  [conversation]      another session: nothing is shared between tenants

`find` says which session a prompt without an id goes on with. `place` chooses the thread of a session for a request,
and remembers the request as that thread's conversation. A request that fails is taken back (`withdraw`).

A thread may be alone in its family, and a store may hold its transcript. Such a thread needs no look at its content
while it goes on word for word (`goes_on_alone`). What is remembered of it falls behind then, and is read from the store
when another request of the family comes.

Bounded in threads for a family, and in conversations and bytes in sum, shared fairly between API keys. What is pushed
out is only not recognised any more: its session stays, and is asked for through `load` when its id comes again.

Lives in memory, and holds hashes, no text. It knows no store, no route and no engine. One thread at a time.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from acmserve.context.storage.fair_share import plan_victims
from acmserve.context.storage.session import Bound, Key
from acmserve.errors import IntegrityError
from acmserve.server.identity.content import ContentIndex
from acmserve.server.identity.fingerprint import Fingerprint, fingerprint_of, unit_of, with_answer
from acmserve.server.identity.placement import FoundSession, KnownThread, Placement, begun_thread, derived_id, foresee
from acmserve.server.identity.prompt import PromptUnits
from acmserve.server.identity.summaries import Summaries, summed_by
from acmserve.server.identity.thread_hints import ThreadHints
from acmserve.server.identity.threads import MAIN, Candidate, Choice, ChoiceKind, choose_thread

MAX_SIDE_THREADS = 8
DEFAULT_BOUND = Bound(8192, 64 * 2**20)

Load = Callable[[str, str], Sequence[KnownThread]]
"""The threads of a tenant's session id that are stored, though nothing is known of them here."""


@dataclass(slots=True)
class _Tenant:
    families: dict[str, OrderedDict[str, KnownThread]] = field(default_factory=dict)
    sessions: dict[str, KnownThread] = field(default_factory=dict)
    conversations: dict[str, Fingerprint] = field(default_factory=dict)
    index: ContentIndex = field(default_factory=ContentIndex)
    summaries: Summaries = field(default_factory=Summaries)

    def remember(self, session_id: str, conversation: Fingerprint, *, indexes: bool) -> None:
        """Put a conversation in the place of what was known of a session."""
        self.forget(session_id)
        self.conversations[session_id] = conversation
        if indexes:
            self.index.add(session_id, conversation)
            self.summaries.add(session_id, conversation)

    def forget(self, session_id: str) -> None:
        """What was known of a session is found no more."""
        known = self.conversations.pop(session_id, None)
        if known is not None:
            self.index.remove(session_id, known)
            self.summaries.remove(session_id, known)


class Families:
    """`load` asks for threads that are stored. `indexes` says whether conversations can be found by content."""

    def __init__(self, load: Load | None = None, bound: Bound = DEFAULT_BOUND, *, indexes: bool = True) -> None:
        self._load = load
        self._bound = bound
        self._indexes = indexes
        self._tenants: dict[str, _Tenant] = {}
        self._sizes: OrderedDict[Key, int] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        """Conversations that are remembered."""
        return len(self._sizes)

    @property
    def num_bytes(self) -> int:
        """Host memory of all of them, roughly."""
        return self._num_bytes

    @property
    def work(self) -> tuple[int, int]:
        """Hashes that were looked up by content, and units that were compared one by one."""
        indexes = [of_tenant.index for of_tenant in self._tenants.values()]
        return sum(index.num_looked for index in indexes), sum(index.num_compared for index in indexes)

    def look(
        self, tenant: str, family: str, prompt: PromptUnits, hints: ThreadHints, *, is_explicit: bool
    ) -> Placement:
        """Where `place` would put a request now. Nothing is remembered."""
        of_tenant = self._tenants.get(tenant)
        known = OrderedDict[str, KnownThread]() if of_tenant is None else of_tenant.families.get(family, OrderedDict())
        is_known = MAIN in known and not known[MAIN].is_behind
        stored = () if is_known or self._load is None else self._load(tenant, family)
        return foresee(family, known, stored, prompt, hints, is_explicit=is_explicit)

    def is_side(self, tenant: str, session_id: str) -> bool:
        """Whether a session id is that of a side thread."""
        of_tenant = self._tenants.get(tenant)
        thread = None if of_tenant is None else of_tenant.sessions.get(session_id)
        return thread is not None and thread.name != MAIN

    def engine_id(self, tenant: str, session_id: str) -> str:
        """The id by which the engine knows the KV of a session."""
        of_tenant = self._tenants.get(tenant)
        thread = None if of_tenant is None else of_tenant.sessions.get(session_id)
        return session_id if thread is None else thread.engine_id

    def goes_on_alone(self, tenant: str, family: str, tools: int) -> bool:
        """Whether the family has its main thread only, with these tools. The caller saw it go on, word for word."""
        of_tenant = self._tenants.get(tenant)
        threads = None if of_tenant is None else of_tenant.families.get(family)
        if self._indexes or threads is None or list(threads) != [MAIN] or threads[MAIN].conversation.tools != tools:
            return False
        threads[MAIN].is_behind = True
        self._sizes.move_to_end((tenant, threads[MAIN].session_id))
        return True

    def catch_up(self, key: Key, conversation: Fingerprint) -> None:
        """Remember this of a thread, if it is behind. Its tools are those that it had, and so is the first answer."""
        of_tenant = self._tenants.get(key[0])
        thread = None if of_tenant is None else of_tenant.sessions.get(key[1])
        if of_tenant is not None and thread is not None and thread.is_behind:
            known = thread.conversation
            ours = known.ours or unit_of(known.answer) or conversation.ours
            self._remember(of_tenant, key[0], thread, replace(conversation, tools=known.tools, ours=ours))

    def find(self, tenant: str, prompt: PromptUnits) -> FoundSession | None:
        """The session that a prompt goes on with, None where there is none of this tenant.

        A history that goes on word for word says more than a summary, and a summary more than one that was changed.
        """
        of_tenant = self._tenants.get(tenant)
        if of_tenant is None or not len(prompt):
            return None
        has_anothers = partial(of_tenant.summaries.has_anothers, prompt, of_tenant.sessions)
        found = of_tenant.index.find(prompt, of_tenant.conversations, has_anothers)
        if found is None or not found[1]:
            named = of_tenant.summaries.find(prompt, of_tenant.sessions, of_tenant.families)
            if named is not None:
                return FoundSession(named, by_summary=True)
        return None if found is None else FoundSession(of_tenant.sessions[found[0]].family)

    def place(
        self, tenant: str, family: str, prompt: PromptUnits, hints: ThreadHints, *, is_explicit: bool
    ) -> Placement:
        """Choose the thread of a request, and remember the request there."""
        of_tenant = self._tenants.setdefault(tenant, _Tenant())
        threads = self._threads(of_tenant, tenant, family)
        candidates = [Candidate(each.name, each.conversation, each.agent) for each in threads.values()]
        choice = choose_thread(prompt, hints, candidates, family=family, is_explicit=is_explicit)
        main = threads.get(MAIN)
        moved = None
        if choice.kind is ChoiceKind.TAKE_OVER and main is not None:
            moved = self._make_room(of_tenant, tenant, main, choice.label)
        thread, before = self._chosen(of_tenant, tenant, family, choice, hints.agent)
        forked_from = None
        if choice.kind in (ChoiceKind.FORK, ChoiceKind.RETELL) and main is not None:
            forked_from = main.session_id if choice.kind is ChoiceKind.FORK else None
            thread.engine_id, thread.is_fork = main.engine_id, True
        conversation = fingerprint_of(prompt, before)
        thread.summed = summed_by(thread, main, prompt)
        of_tenant.summaries.pass_over(family, prompt, of_tenant.sessions)
        self._remember(of_tenant, tenant, thread, conversation)
        left = self._shorten(of_tenant, tenant, family, thread)
        self._shrink((tenant, thread.session_id))
        return Placement(thread, conversation, before, forked_from, moved, left)

    def withdraw(self, tenant: str, placement: Placement) -> bool:
        """The request has failed: what was known of its thread before holds again. False where another came meanwhile.

        Nothing is changed then.
        """
        of_tenant, thread = self._tenants.get(tenant), placement.thread
        if of_tenant is None or of_tenant.sessions.get(thread.session_id) is not thread:
            return False
        if thread.conversation is not placement.conversation:
            return False
        thread.summed = None
        if placement.before is None:
            self.drop((tenant, thread.session_id))
        else:
            self._remember(of_tenant, tenant, thread, placement.before)
        return True

    def answered(self, tenant: str, placement: Placement, message: object) -> None:
        """The answer that was given to a request: it tells conversations apart that begin alike."""
        of_tenant, thread = self._tenants.get(tenant), placement.thread
        if of_tenant is None or of_tenant.sessions.get(thread.session_id) is not thread:
            return
        if thread.conversation is placement.conversation:
            self._remember(of_tenant, tenant, thread, with_answer(thread.conversation, message))
            if self._indexes:
                of_tenant.summaries.compare(thread.conversation, thread.family)

    def drop(self, key: Key) -> None:
        """Forget a session. Nothing is found by its content any more."""
        of_tenant = self._tenants.get(key[0])
        thread = None if of_tenant is None else of_tenant.sessions.get(key[1])
        if of_tenant is None or thread is None:
            return
        of_tenant.forget(thread.session_id)
        del of_tenant.sessions[thread.session_id]
        threads = of_tenant.families[thread.family]
        del threads[thread.name]
        if not threads:
            del of_tenant.families[thread.family]
        if not of_tenant.sessions:
            del self._tenants[key[0]]
        self._num_bytes -= self._sizes.pop(key)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when bounds, sizes, families and the index disagree."""
        if len(self) > self._bound.max_sessions or self._num_bytes > self._bound.max_bytes:
            raise IntegrityError(f"families: {len(self)} conversations, {self._num_bytes} bytes of {self._bound}")
        if self._num_bytes != sum(self._sizes.values()):
            raise IntegrityError(f"families: {self._num_bytes} bytes counted, there are {sum(self._sizes.values())}")
        for tenant, of_tenant in self._tenants.items():
            held = {each.session_id for threads in of_tenant.families.values() for each in threads.values()}
            sized = {session_id for owner, session_id in self._sizes if owner == tenant}
            if not held == sized == of_tenant.sessions.keys() == of_tenant.conversations.keys():
                raise IntegrityError(
                    f"families: {len(held)} threads, {len(sized)} sizes, {len(of_tenant.sessions)} ids"
                )
            of_tenant.index.check_integrity(of_tenant.conversations if self._indexes else {})
            of_tenant.summaries.check_integrity(of_tenant.sessions if self._indexes else {})
            for threads in of_tenant.families.values():
                if len(threads) > MAX_SIDE_THREADS + 1:
                    raise IntegrityError(f"families: {len(threads)} threads in one family")

    def _threads(self, of_tenant: _Tenant, tenant: str, family: str) -> OrderedDict[str, KnownThread]:
        """The threads of a family, used longest ago first. What is stored and not known is loaded."""
        known = of_tenant.families.get(family, OrderedDict())
        if MAIN not in known and self._load is not None:
            for thread in self._load(tenant, family):
                if thread.name not in known:
                    self._add(of_tenant, thread)
                    self._remember(of_tenant, tenant, thread, thread.conversation)
        self._catch_up(of_tenant, tenant, family)
        return of_tenant.families.get(family, known)

    def _catch_up(self, of_tenant: _Tenant, tenant: str, family: str) -> None:
        """Read what is stored of a thread that went on alone."""
        thread = of_tenant.families.get(family, OrderedDict()).get(MAIN)
        if thread is None or not thread.is_behind or self._load is None:
            return
        for stored in self._load(tenant, family):
            if stored.name == MAIN:
                self.catch_up((tenant, thread.session_id), stored.conversation)

    def _add(self, of_tenant: _Tenant, thread: KnownThread) -> None:
        of_tenant.families.setdefault(thread.family, OrderedDict())[thread.name] = thread
        of_tenant.sessions[thread.session_id] = thread

    def _chosen(
        self, of_tenant: _Tenant, tenant: str, family: str, choice: Choice, agent: str
    ) -> tuple[KnownThread, Fingerprint | None]:
        """The thread that was chosen, and what was known of it."""
        if choice.name is not None and choice.kind is not ChoiceKind.TAKE_OVER:
            known = of_tenant.families.get(family, OrderedDict()).get(choice.name)
            if known is not None:
                return known, known.conversation
        name = MAIN if choice.kind is ChoiceKind.TAKE_OVER or choice.name == MAIN else self._new_name(choice.label)
        thread = begun_thread(family, name, of_tenant.families.get(family, OrderedDict()).values(), agent)
        self._add(of_tenant, thread)
        return thread, None

    def _new_name(self, label: str) -> str:
        return f"{label}-{secrets.token_hex(3)}"

    def _make_room(self, of_tenant: _Tenant, tenant: str, main: KnownThread, label: str) -> KnownThread:
        """Let the main thread be a side thread. Its KV keeps the name that it has in the engine."""
        conversation = main.conversation
        self.drop((tenant, main.session_id))
        name = self._new_name(label)
        moved = KnownThread(main.family, name, derived_id(main.family, name), main.engine_id, conversation)
        of_tenant = self._tenants.setdefault(tenant, of_tenant)
        self._add(of_tenant, moved)
        self._remember(of_tenant, tenant, moved, conversation)
        return moved

    def _remember(self, of_tenant: _Tenant, tenant: str, thread: KnownThread, conversation: Fingerprint) -> None:
        """Set what is known of a thread, which is the newest then."""
        key = (tenant, thread.session_id)
        of_tenant.remember(thread.session_id, conversation, indexes=self._indexes)
        thread.conversation = conversation
        thread.is_behind = False
        of_tenant.families[thread.family].move_to_end(thread.name)
        self._num_bytes += conversation.num_bytes - self._sizes.get(key, 0)
        self._sizes[key] = conversation.num_bytes
        self._sizes.move_to_end(key)

    def _shorten(self, of_tenant: _Tenant, tenant: str, family: str, kept: KnownThread) -> tuple[str, ...]:
        """Drop the side threads of a family that are too many, the one used longest ago first."""
        sides = [each for each in of_tenant.families[family].values() if each.name != MAIN and each is not kept]
        surplus = len(sides) + (kept.name != MAIN) - MAX_SIDE_THREADS
        left = tuple(thread.session_id for thread in sides[: max(0, surplus)])
        for session_id in left:
            self.drop((tenant, session_id))
        return left

    def _shrink(self, kept: Key) -> None:
        """Forget conversations over the bound, an eighth of it at a time, so that a full memory costs nothing more."""
        if len(self) <= self._bound.max_sessions and self._num_bytes <= self._bound.max_bytes:
            return
        bound = Bound(max(1, self._bound.max_sessions * 7 // 8), self._bound.max_bytes * 7 // 8)
        for key in plan_victims(self._sizes, bound, lambda other: other == kept):
            self.drop(key)
