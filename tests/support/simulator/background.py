"""What background requests may do to everybody else, judged without the engine's own ledger.

In every step: a background request is computed alone, while no request of the foreground is alive, in one chunk at a
time. What it displaces is watched block by block, from the block tables of all live requests:

    by_precompute     handed out to a background request, and since then neither held nor copied by anybody else
    last_held    the last step in which a request of the foreground held the block, forgotten when it is handed out
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from tests.support.simulator.failure import ensure
from tests.support.simulator.scripts import Script, Tokens, Turn


class BackgroundWatch:
    """The watch over one simulation. The limits are those of `EngineConfig`, with steps for seconds."""

    def __init__(
        self, scheduler: Scheduler, turns: Iterable[Turn], settings: dict[str, Any] | None, now: Callable[[], int]
    ) -> None:
        self._scheduler = scheduler
        self._now = now
        self._background_blocks: Any = None
        if settings is not None:
            connector: Any = scheduler.connector
            self._background_blocks = connector.precompute.blocks
            self._background_blocks.clock = lambda: float(now())
        settings = settings or {}
        self._num_tokens = 0
        self._pool = scheduler.kv_cache_manager.block_pool
        self._background = {turn.request_id for turn in turns if turn.precompute}
        self._chunk_tokens = settings.get("precompute_chunk_tokens", 256)
        self._quiet = settings.get("precompute_quiet_s", 0.05)
        self._min_age = settings.get("precompute_min_age_s", 60.0)
        self._max_blocks = int(settings.get("precompute_max_pool_share", 0.2) * self._pool.num_gpu_blocks)
        self._by_precompute: set[int] = set()
        self._last_held: dict[int, int] = {}
        self._displaced: list[int] = []
        self._num_in_flight = 0
        self._disturbed_at = -1

    @property
    def foreground(self) -> set[str]:
        """Requests of the foreground that are alive."""
        return set(self._scheduler.requests) - self._background

    def on_hand_out(self, num_blocks: int) -> None:
        """The pool is about to hand out its next `num_blocks` blocks."""
        if not self._background:
            return
        free = self._pool.free_block_queue.iter_blocks_after(None)
        taken = list(islice(free, num_blocks))
        others = [b.block_id for b in taken if b.block_hash is not None and b.block_id not in self._by_precompute]
        young = [b for b in others if self._now() - self._last_held.get(b, -math.inf) < self._min_age]
        if young:
            spared = [b.block_id for b in free if b.block_hash is not None and b.block_id in self._by_precompute]
            ensure(not spared, "precompute", f"blocks {young} go before {spared}, which were computed ahead")
        self._displaced += others
        self._by_precompute -= {block.block_id for block in taken}

    def check_step(self, output: SchedulerOutput, handed_out: Iterable[int], foreground: set[str]) -> None:
        """A step was scheduled while `foreground` was alive."""
        if not self._background:
            return
        step = self._now()
        displaced, self._displaced = self._displaced, []
        background = self._background & output.num_scheduled_tokens.keys()
        if foreground:
            self._disturbed_at = step
        if background:
            where = f"background requests {background}"
            ensure(not foreground, "precompute", f"{where} are computed while {foreground} are alive")
            ensure(len(output.num_scheduled_tokens) == 1, "precompute", f"{where} are computed in one step")
            quiet = step - self._disturbed_at
            ensure(quiet >= self._quiet, "precompute", f"{where} are computed {quiet} steps after others")
            padding = output.scheduled_spec_decode_tokens
            num_tokens = output.total_num_scheduled_tokens - sum(len(padding.get(one, ())) for one in background)
            ensure(num_tokens <= self._chunk_tokens, "precompute", f"{where} compute {num_tokens} tokens in one step")
            ages = {block: step - self._last_held[block] for block in displaced if block in self._last_held}
            young = {block: age for block, age in ages.items() if age < self._min_age}
            ensure(not young, "precompute", f"{where} displace blocks that were held {young} steps ago")
            self._by_precompute |= set(handed_out)
            self._num_in_flight += 1
            self._num_tokens += num_tokens
        ensure(self._num_in_flight <= 1, "precompute", f"{self._num_in_flight} background chunks are in flight")
        for block in (*displaced, *handed_out):
            self._last_held.pop(block, None)
        self._note_use(step, output)
        held = [b for b in self._by_precompute if self._pool.blocks[b].ref_cnt or self._pool.blocks[b].block_hash]
        ensure(len(held) <= self._max_blocks, "precompute", f"{len(held)} blocks ahead, allowed are {self._max_blocks}")

    def on_processed(self, output: SchedulerOutput) -> None:
        """The output of a step reached the scheduler."""
        self._num_in_flight -= bool(self._background & output.num_scheduled_tokens.keys())

    def check_receipt(self, turn: Turn, receipt: dict[str, Any]) -> None:
        """A background request moves nothing. It is through, or says how far it came and why not farther."""
        where = f"{turn.request_id} with {len(turn.prompt)} tokens: {receipt}"
        is_through = receipt["prompt_tokens"] == len(turn.prompt)
        ensure(is_through or receipt["fallback_reason"] is not None, "receipt", where)
        ensure(receipt["moved_tokens"] == receipt["precomputed_tokens"] == 0, "receipt", where)
        ensure(receipt["fidelity"] == "exact", "receipt", where)

    def check_end(self, num_in_receipts: int) -> None:
        """The engine counted what the worker computed, and receipts tell of no more than was used."""
        if self._background_blocks is not None:
            counts = self._background_blocks.counts
            ensure(counts.computed_tokens == self._num_tokens, "precompute", f"worker: {self._num_tokens}; {counts}")
            ensure(counts.used_tokens >= num_in_receipts, "precompute", f"receipts: {num_in_receipts}; {counts}")

    def _note_use(self, step: int, output: SchedulerOutput) -> None:
        for request_id in self.foreground:
            blocks = self._scheduler.kv_cache_manager.get_block_ids(request_id)[0]
            self._last_held.update(dict.fromkeys(blocks, step))
            self._by_precompute -= set(blocks)
        metadata: Any = output.kv_connector_metadata
        for copy in getattr(metadata, "copies", ()):
            if copy.request_id not in self._background:
                self._by_precompute -= set(copy.src_block_ids)


def with_background(script: Script) -> Script:
    """The script with background requests between its turns, more time for them, and limits that they run into.

    What is foreseen is the next context of the session, or its beginning, or one that never comes.
    """
    rng = random.Random(f"background of {script.seed}")
    assert script.machine.connector is not None
    settings = script.machine.connector | {
        "precompute_chunk_tokens": rng.choice((3, 8, 16, 64)),
        "precompute_chunk_s": rng.choice((0.0, 0.5, 1000.0)),
        "precompute_max_pool_share": rng.choice((0.1, 0.3, 0.6, 1.0)),
        "precompute_quiet_s": float(rng.choice((0, 0, 1, 4))),
        "precompute_min_age_s": float(rng.choice((0, 5, 30, 200))),
        "precompute_delay_share": rng.choice((0.03, 1.0, 1.0)),
    }
    stretch = rng.choice((1, 5, 20))
    turns: list[Turn] = []
    for index, turn in enumerate(script.turns):
        turns.append(replace(turn, at_step=turn.at_step * stretch))
        following = [t for t in script.turns[index + 1 :] if (t.session, t.salt) == (turn.session, turn.salt)]
        if turn.session is None or rng.random() < 0.3:
            continue
        turns.append(
            Turn(
                request_id=f"{turn.request_id}-ahead",
                prompt=_candidates(rng, (following or [turn])[0].prompt),
                max_tokens=1,
                session=turn.session,
                salt=turn.salt,
                priority=rng.randrange(3),
                at_step=(turn.at_step + rng.randrange(4)) * stretch,
                after=turn.request_id if rng.random() < 0.7 else None,
                abort_after_steps=rng.randrange(40) if rng.random() < 0.15 else None,
                precompute=True,
            )
        )
    return replace(script, machine=replace(script.machine, connector=settings), turns=tuple(turns))


def _candidates(rng: random.Random, context: Tokens) -> Tokens:
    kind = rng.random()
    if kind < 0.5:
        return context
    if kind < 0.8:
        return context[: rng.randint(1, len(context))]
    return tuple(rng.sample(context, len(context)))
