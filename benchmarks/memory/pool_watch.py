"""What a conversation holds of the block pool, seen behind each scheduling step of an engine of its own process.

    held        [ blocks of the request ][ sources that are copied in this step ]      in the step
    idle        nothing, in any way: between turns a block is cached or empty, and vLLM may hand it out
    cached      blocks that a later prompt can find. vLLM takes the oldest of them when it needs room

Held blocks are what nobody else can have, so the sources of a copy are the overhead of a move in the pool. A stock
engine copies nothing. The control has the sources of its moves not held, and the watch has to see none there.

Decision: the watch looks at vLLM's own counts, and knows none of ours but the size that the store of sources says. It
looks behind each step, and where the step gives back the blocks that its copies read. An engine that waits for each
step does that within the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from acmserve.bench.edit.gate import longer
from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine, check_receipt
from acmserve.bench.harness.engine_process import PipedProcess
from acmserve.bench.memory.conversation import MemoryTurn
from acmserve.errors import AcmError

STOCK, EXACT, REUSE, UNHELD = "stock", "exact", "reuse", "unheld"
WAYS = (STOCK, EXACT, REUSE, UNHELD)
"""The last one is the control: `reuse` whose sources are not held while they are copied."""
_COUNTS = ("kept_tokens", "moved_tokens", "computed_tokens")


@dataclass(slots=True)
class WatchedWay:
    """What was seen of one way. Blocks are numbers of them. `last` is the last prompt once more, with 32 tokens."""

    name: str
    num_blocks: int = 0
    most_held_blocks: int = 0
    most_copied_blocks: int = 0
    most_idle_blocks: int = 0
    cached_blocks: int = 0
    store_bytes: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    failures: list[str] = field(default_factory=list)
    last: EngineReply | None = None

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, without the answer."""
        return {name: value for name, value in asdict(self).items() if name not in ("last", "failures")}


class PoolWatch:
    """Looks at the pool of an engine of this process behind each step, from now on."""

    def __init__(self, llm: Any, way: WatchedWay) -> None:
        self._way = way
        self._scheduler = llm.llm_engine.engine_core.engine_core.scheduler
        self._manager = self._scheduler.kv_cache_manager
        self._pool = self._manager.block_pool
        way.num_blocks = self._pool.num_gpu_blocks - 1  # without the null block
        schedule, release = self._scheduler.schedule, self._scheduler._free_cow_retained_blocks

        def scheduled(*arguments: Any, **named: Any) -> Any:
            output = schedule(*arguments, **named)
            self._look()
            return output

        def released(*arguments: Any, **named: Any) -> Any:
            self._look()
            return release(*arguments, **named)

        self._scheduler.schedule, self._scheduler._free_cow_retained_blocks = scheduled, released

    def _num_held(self) -> int:
        return int(self._way.num_blocks - self._pool.get_num_free_blocks())

    def _look(self) -> None:
        tables = (self._manager.get_block_ids(request.request_id) for request in self._scheduler.running)
        own = {block for groups in tables for ids in groups for block in ids} - {self._pool.null_block.block_id}
        held = self._num_held()
        self._way.most_held_blocks = max(self._way.most_held_blocks, held)
        self._way.most_copied_blocks = max(self._way.most_copied_blocks, held - len(own))

    def rest(self) -> None:
        """A turn is over, and no request runs."""
        self._way.most_idle_blocks = max(self._way.most_idle_blocks, self._num_held())

    def finish(self) -> None:
        """The conversation is over."""
        self._way.cached_blocks = sum(block.block_hash is not None for block in self._pool.blocks)
        store = getattr(self._scheduler.connector, "store", None)
        self._way.store_bytes = 0 if store is None else store.num_bytes


def watch_way(name: str, folder: Path, turns: Sequence[MemoryTurn]) -> WatchedWay:
    """Serve all turns in a process of its own. Raises AcmError where its engine does not start, or ends."""
    with PipedProcess(_serve, name, folder, turns) as process:
        found: WatchedWay = process.receive()
    return found


def _serve(pipe: Connection, name: str, folder: Path, turns: Sequence[MemoryTurn]) -> None:
    try:
        pipe.send(_watched(name, folder, turns))
    except AcmError as error:
        pipe.send(error)


def _watched(name: str, folder: Path, turns: Sequence[MemoryTurn]) -> WatchedWay:
    engine, way = LocalEngine(folder, with_acmserve=name != STOCK), WatchedWay(name)
    if name == UNHELD:
        from acmserve.engine.scheduling.source_pins import SourcePins

        SourcePins.pin_sources = False
    watch = PoolWatch(engine.llm, way)
    for turn in turns:
        asked = ask_of(name, turn)
        receipt = engine.ask(asked).receipt
        watch.rest()
        if asked.session_id is not None:
            way.failures += check_receipt(asked, receipt)
            for count in _COUNTS:
                way.tokens[count] += (receipt or {}).get(count, 0)
    watch.finish()
    way.last = engine.ask(longer(ask_of(name, turns[-1])))
    engine.close()
    return way


def ask_of(name: str, turn: MemoryTurn) -> Ask:
    """The request of one turn: a plain one for a stock engine, else one of a session."""
    if name == STOCK:
        return Ask(turn.prompt, name)
    return Ask(turn.prompt, name, f"memory-{name}", EXACT if name == EXACT else REUSE)
