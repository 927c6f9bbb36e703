"""Updates of context maps, in the background: after a query is answered, its map learns from it.

    finished query --schedule--> waiting --> Distiller --> Cartographer --> learn --> MapStore.save
                                 one at a time for each map             \\-- an error --> the history

Only a user who asks to waits for an update. No error of an update reaches a user's request. Errors are noted in the
map's history. An update may be one call instead of two. No more updates are taken on than the map's `evolve_steps`
leave, those that wait included. A query waits as a copy of what the model can read of it, and all of them are bounded
in sum. Those of a session that is gone still teach. A bad answer of the Distiller taught nothing and costs no step, one
of the Cartographer does. This class owns the tasks. `close` ends them, and notes the updates that were cut off.

A map that is deleted learns nothing more, and its queries go. One that is made in its place begins to learn when the
update that is under way has returned.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Collection
from contextvars import Context
from dataclasses import dataclass, field

from acmserve.context.maps.answers import Charted, Distilled, read_at_once, read_charted, read_distilled
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.prompts import MapQuestion, ask_at_once, ask_cartographer, ask_distiller
from acmserve.context.maps.rules import MapRules
from acmserve.context.maps.trajectory import question_of, tell
from acmserve.context.maps.update import Learned, fail, learn
from acmserve.context.storage.fair_share import plan_victims
from acmserve.context.storage.map_store import HeldMap, MapStore
from acmserve.context.storage.map_table import MapKey
from acmserve.context.storage.session import Bound
from acmserve.context.transcript.tokenizer import count_tokens
from acmserve.errors import AcmError, IntegrityError, InvalidRequest
from acmserve.server.http.tenants import TENANT
from acmserve.server.maps.queries import FinishedQuery
from acmserve.server.maps.redacted import RedactedNow
from acmserve.server.models.map_model import MapAnswer, MapModel
from acmserve.server.options.map_options import UpdateOptions

MAX_WAITING = 64
"""Queries of one map that wait at most. What comes beyond teaches nothing."""
MAX_WAITING_CHARS = 16 * 2**20
"""Characters that the waiting queries of all maps hold. Each API key has a fair share of them."""
# A query has so many characters for each token of the window. Most text has four.
_NUM_TOKEN_CHARS = 8
# Room for the chat template beside the prompt.
_NUM_TEMPLATE_TOKENS = 64

logger = logging.getLogger(f"vllm.{__name__}")


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
    _learning: dict[MapKey, HeldMap] = field(default_factory=dict)
    _tasks: dict[MapKey, asyncio.Task[None]] = field(default_factory=dict)

    @property
    def max_chars(self) -> int:
        """What is told of one query at most, in characters."""
        return min(self.window * _NUM_TOKEN_CHARS, MAX_WAITING_CHARS // 4)

    def takes(self, held: HeldMap) -> bool:
        """Whether the map learns from one more query."""
        context_map = held.context_map
        room = min(context_map.evolve_steps - context_map.num_steps, MAX_WAITING) - self.num_pending(held.key)
        return self.model is not None and not context_map.frozen and room > 0 and self.store.holds(held)

    def schedule(self, held: HeldMap, query: FinishedQuery) -> bool:
        """Let the map learn from a query as soon as it can. False where it does not any more."""
        if self.model is None or not self.takes(held):
            return False
        queue = self._waiting.setdefault(held.key, deque())
        if self._learning.get(held.key) is not held:
            queue.clear()
            self._learning[held.key] = held
        queue.append(query)
        self._make_room()
        is_taken = any(waiting is query for waiting in queue)
        if held.key not in self._tasks:
            # An empty context: the request that has just been answered is not the update's.
            working = self._teach(held.key, self.model)
            self._tasks[held.key] = asyncio.get_running_loop().create_task(working, context=Context())
        return is_taken

    def take_back(self, held: HeldMap, session_id: str) -> bool:
        """Drop the newest query of a session: it goes on. False where none waits, since its update is done.

        One that is under way changes nothing any more. What its models read counts among the map's tokens.
        """
        queue = self._waiting[held.key] if self._learning.get(held.key) is held else deque()
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
        held = self._learning.get(key)
        return len(self._waiting[key]) if held is not None and self.store.holds(held) else 0

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

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when bounds are broken, or queries wait for nobody."""
        for key, queue in self._waiting.items():
            if len(queue) > MAX_WAITING:
                raise IntegrityError(f"map updates: {len(queue)} queries of {key} wait, at most {MAX_WAITING} may")
        if (num_chars := self.num_chars) > MAX_WAITING_CHARS:
            raise IntegrityError(f"map updates: {num_chars} characters wait, at most {MAX_WAITING_CHARS} may")
        if not self._waiting.keys() == self._tasks.keys() == self._learning.keys():
            numbers = f"{len(self._waiting)} queues, {len(self._tasks)} tasks, {len(self._learning)} maps"
            raise IntegrityError(f"map updates: {numbers}")

    @property
    def num_chars(self) -> int:
        """Characters that the waiting queries hold."""
        return sum(query.num_chars for queue in self._waiting.values() for query in queue)

    def _make_room(self) -> None:
        """Drop queries until the rest is within the bound. Those with most in front of them go first."""
        if self.num_chars <= MAX_WAITING_CHARS:
            return
        waiting = [(at, key, query) for key, queue in reversed(self._waiting.items()) for at, query in enumerate(queue)]
        waiting.sort(key=lambda item: item[0], reverse=True)
        sizes = {(key[0], str(number)): query.num_chars for number, (_, key, query) in enumerate(waiting)}
        for _, number in plan_victims(sizes, Bound(len(sizes), MAX_WAITING_CHARS), lambda _: False):
            at, key, _ = waiting[int(number)]
            del self._waiting[key][at]

    async def _teach(self, key: MapKey, model: MapModel) -> None:
        """All waiting updates of an id, also those of a map that is made meanwhile in the place of another one."""
        TENANT.set(key[0])
        taught: HeldMap | None = None
        try:
            while taught is not self._learning[key]:
                taught = self._learning[key]
                await self._work(taught, model)
        finally:
            del self._waiting[key], self._learning[key], self._tasks[key]

    async def _work(self, held: HeldMap, model: MapModel) -> None:
        """The waiting updates of one map, one after the other. A query leaves the queue when it is dealt with."""
        queue, counted = self._waiting[held.key], CountedMapModel(model)
        try:
            while queue and self.store.holds(held) and not held.context_map.frozen:
                query = queue[0]
                after = await self._update(held, query, counted)
                if self._is_next(held, query):
                    queue.popleft()
                    self.store.save(held, counted.charged(after))
            if counted.num_read and self.store.holds(held):
                self.store.save(held, counted.charged(held.context_map))
        except asyncio.CancelledError:
            if self._learning[held.key] is not held:
                held, counted = self._learning[held.key], CountedMapModel(model)
            for query in queue:
                said = "The server stopped before the update was done."
                self.store.save(held, counted.charged(self._failed(held, query, said, answered=False)))
            raise

    def _is_next(self, held: HeldMap, query: FinishedQuery) -> bool:
        """Whether this very query is the one to be dealt with. It is another one once it was redacted."""
        queue = self._waiting[held.key]
        return bool(queue) and queue[0] is query

    async def _update(self, held: HeldMap, query: FinishedQuery, counted: CountedMapModel) -> ContextMap:
        """Ask about a query: the map that knows the answer, or that notes why there is none."""
        seen = held.context_map
        try:
            try:
                distilled, charted = await self._distil(seen, query, counted)
            except InvalidRequest as error:
                return self._failed(held, query, str(error), answered=False)
            if charted is None and not self._is_next(held, query):
                # It was dropped or redacted meanwhile, so no model reads it any more.
                return seen
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
        answer = (await counted.ask(ask(tell(query.kept, room, tokenizer)), options)).text
        return read_at_once(answer, seen) if options.num_calls == 1 else (read_distilled(answer, seen), None)

    async def _chart(
        self, seen: ContextMap, distilled: Distilled, query: FinishedQuery, counted: CountedMapModel
    ) -> Charted:
        asked, num_tokens = question_of(query.kept.messages), self.rules.count(seen)
        question = ask_cartographer(seen, distilled, asked, num_tokens, query.options.prompts)
        return read_charted((await counted.ask(question, query.options)).text)

    def _failed(self, held: HeldMap, query: FinishedQuery, error: str, *, answered: bool) -> ContextMap:
        """The map with an error in its history."""
        now = self.store.clock()
        return fail(held.context_map, error, self.rules, now, session_id=query.session_id, answered=answered)
