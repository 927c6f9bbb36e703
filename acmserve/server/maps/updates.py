"""Updates of context maps, in the background: after a query is answered, its map learns from it.

    finished query --schedule--> waiting --> Distiller --> Cartographer --> learn --> MapStore.save
                                 one at a time for each map             \\-- an error --> the history

No user waits for an update who does not ask to, and none of its errors reaches a user's request: they are noted in the
map's history. An update may be one call instead of two. No more updates are taken on than the map's `evolve_steps`
leave, those that wait included. A bad answer of the Distiller taught nothing and costs no step, one of the Cartographer
does. This class owns the tasks. `close` ends them, and notes the updates that were cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace

from acmserve.context.maps.answers import Charted, Distilled, read_at_once, read_charted, read_distilled
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.prompts import MapQuestion, ask_at_once, ask_cartographer, ask_distiller
from acmserve.context.maps.rules import MapRules
from acmserve.context.maps.trajectory import fit, question_of, trajectory
from acmserve.context.maps.update import Learned, fail, learn
from acmserve.context.storage.map_store import HeldMap, MapStore
from acmserve.context.storage.map_table import MapKey
from acmserve.context.transcript.message import Message
from acmserve.context.transcript.tokenizer import count_tokens
from acmserve.errors import AcmError, InvalidRequest
from acmserve.server.maps.redacted import RedactedNow
from acmserve.server.models.map_model import MapAnswer, MapModel
from acmserve.server.options.map_options import DEFAULT_UPDATE, UpdateOptions

MAX_WAITING = 64
"""Queries of one map that wait at most, each with its messages. What comes beyond teaches nothing."""
# Room for the chat template beside the prompt.
_NUM_TEMPLATE_TOKENS = 64

logger = logging.getLogger(f"vllm.{__name__}")


@dataclass(frozen=True, slots=True)
class FinishedQuery:
    """What a map is to learn from: the messages of one query, from the question to the answer.

    `sources` are sessions whose text its session began with.
    """

    messages: Sequence[Message]
    session_id: str = ""
    options: UpdateOptions = DEFAULT_UPDATE
    sources: frozenset[str] = frozenset()

    def without(self, redacted: RedactedNow) -> FinishedQuery:
        """The query without what was redacted, the very object where there is none of it."""
        messages, told = redacted.cut_messages(self.messages), self.options.ground_truth
        cut = None if told is None else redacted.cut_text(told)
        if cut is told and all(new is old for new, old in zip(messages, self.messages, strict=True)):
            return self
        return replace(self, messages=messages, options=replace(self.options, ground_truth=cut))


@dataclass(slots=True)
class CountedMapModel:
    """A model that keeps maps, and the tokens that it has read and written since they were last taken."""

    model: MapModel
    num_read: int = 0
    num_written: int = 0

    async def ask(self, question: MapQuestion, options: UpdateOptions) -> MapAnswer:
        """Raises what the model does."""
        answer = await self.model.ask(question, options)
        self.num_read += answer.num_read
        self.num_written += answer.num_written
        return answer

    def charged(self, context_map: ContextMap) -> ContextMap:
        """The map with these tokens among those of its updates."""
        spent, self.num_read, self.num_written = (self.num_read, self.num_written), 0, 0
        return context_map.spent(*spent)


@dataclass(slots=True)
class MapUpdates:
    """`model` None: maps are only edited by hand. `window` is the context of the model in tokens."""

    store: MapStore
    rules: MapRules
    model: MapModel | None = None
    window: int = 32_768
    _waiting: dict[MapKey, deque[FinishedQuery]] = field(default_factory=dict)
    _tasks: dict[MapKey, asyncio.Task[None]] = field(default_factory=dict)

    def schedule(self, held: HeldMap, query: FinishedQuery) -> bool:
        """Let the map learn from a query as soon as it can. False where it does not any more."""
        context_map = held.context_map
        room = min(context_map.evolve_steps - context_map.num_steps, MAX_WAITING) - self.num_pending(held.key)
        if self.model is None or context_map.frozen or room <= 0 or not self.store.holds(held):
            return False
        self._waiting.setdefault(held.key, deque()).append(query)
        if held.key not in self._tasks:
            # An empty context: the request that has just been answered is not the update's.
            working = self._work(held, self.model)
            self._tasks[held.key] = asyncio.get_running_loop().create_task(working, context=Context())
        return True

    def take_back(self, held: HeldMap, session_id: str) -> bool:
        """Drop the newest query of a session: it goes on. False where none waits, since its update is done.

        One that is under way changes nothing any more. What its models read counts among the map's tokens.
        """
        queue = self._waiting.get(held.key, deque())
        found = [at for at, query in enumerate(queue) if query.session_id == session_id]
        if found:
            del queue[found[-1]]
        return bool(found)

    def redact(self, tenant: str, session_ids: Collection[str], redacted: RedactedNow) -> None:
        """Cut what a session redacted out of the queries that wait. One that is under way begins again without it.

        `session_ids` are its own id, and one that it may have had when it was asked.
        """
        for (owner, _), queue in self._waiting.items():
            for at, query in enumerate(list(queue)):
                if owner == tenant and not query.sources.union((query.session_id,)).isdisjoint(session_ids):
                    queue[at] = query.without(redacted)

    def num_pending(self, key: MapKey) -> int:
        """Updates of a map that are under way or wait."""
        return len(self._waiting.get(key, ()))

    async def done(self, key: MapKey) -> None:
        """Return once the updates of a map that are under way, or wait now, are done. Whoever gives up ends none."""
        if key in self._tasks:
            await asyncio.wait({self._tasks[key]})

    async def close(self) -> None:
        """End what is under way. Updates that were cut off are noted. They count as no step."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self, held: HeldMap, model: MapModel) -> None:
        """All waiting updates of one map, one after the other. A query leaves the queue when it is dealt with."""
        queue, counted = self._waiting[held.key], CountedMapModel(model)
        try:
            while queue and self.store.holds(held) and not held.context_map.frozen:
                query = queue[0]
                after = await self._update(held, query, counted)
                if queue and queue[0] is query:
                    queue.popleft()
                    self.store.save(held, counted.charged(after))
            if counted.num_read and self.store.holds(held):
                self.store.save(held, counted.charged(held.context_map))
        except asyncio.CancelledError:
            for query in queue:
                said = "The server stopped before the update was done."
                self.store.save(held, counted.charged(self._failed(held, query, said, answered=False)))
            raise
        finally:
            del self._waiting[held.key], self._tasks[held.key]

    async def _update(self, held: HeldMap, query: FinishedQuery, counted: CountedMapModel) -> ContextMap:
        """Ask about a query: the map that knows the answer, or that notes why there is none."""
        seen = held.context_map
        try:
            try:
                distilled, charted = await self._distil(seen, query, counted)
            except InvalidRequest as error:
                return self._failed(held, query, str(error), answered=False)
            charted = charted or await self._chart(seen, distilled, query, counted)
            learned = Learned(distilled, charted, seen, query.session_id, query.options.evicts)
            return learn(held.context_map, learned, self.rules, self.store.clock())
        except InvalidRequest as error:
            return self._failed(held, query, str(error), answered=True)
        except AcmError as error:
            return self._failed(held, query, str(error), answered=False)
        except Exception as error:
            logger.exception("acmserve: an update of the map of %r failed", held.key[1])
            return self._failed(held, query, f"{type(error).__name__}: {error}", answered=True)

    async def _distil(
        self, seen: ContextMap, query: FinishedQuery, counted: CountedMapModel
    ) -> tuple[Distilled, Charted | None]:
        """Ask the Distiller about a query, or the one who does it all.

        Raises InvalidRequest for an answer that is not what was asked.
        """
        options, tokenizer = query.options, self.rules.tokenizer

        def ask(done: str) -> MapQuestion:
            if options.num_calls == 1:
                return ask_at_once(seen, done, self.rules.count(seen), options.ground_truth)
            return ask_distiller(seen, done, options.prompts, options.ground_truth)

        num_own = count_tokens(tokenizer, ask("").prompt)
        room = self.window - counted.model.num_answer_tokens(options) - num_own - _NUM_TEMPLATE_TOKENS
        if room < 1:
            raise InvalidRequest("window", f"of {self.window:,} tokens is too small for a map of {seen.budget:,}.")
        answer = (await counted.ask(ask(fit(trajectory(query.messages), room, tokenizer)), options)).text
        return read_at_once(answer, seen) if options.num_calls == 1 else (read_distilled(answer, seen), None)

    async def _chart(
        self, seen: ContextMap, distilled: Distilled, query: FinishedQuery, counted: CountedMapModel
    ) -> Charted:
        asked, num_tokens = question_of(query.messages), self.rules.count(seen)
        question = ask_cartographer(seen, distilled, asked, num_tokens, query.options.prompts)
        return read_charted((await counted.ask(question, query.options)).text)

    def _failed(self, held: HeldMap, query: FinishedQuery, error: str, *, answered: bool) -> ContextMap:
        """The map with an error in its history."""
        now = self.store.clock()
        return fail(held.context_map, error, self.rules, now, session_id=query.session_id, answered=answered)
