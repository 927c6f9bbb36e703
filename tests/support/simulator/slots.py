"""The KV cache as a list of records, one per slot, and the rules for reading, copying and writing them.

    slot = block_id * block_size + offset          None = poison: nobody wrote it since its block was handed out

A slot is *exact* for a reader at position p iff its record's origin is the reader's own trie node at p (see truth.py).
Anything else may be read only by the session that moved it, and only while that session asks for `reuse`:

    read      same token, same position, and either exact or tainted by nobody but the reader's own (session, salt)
    copy      source: exact KV that this session has seen before, or KV tainted by this session alone
              result: exact KV stays exact where the prefix is the same. Else it is tainted, and turned KV is MIXED
    compute   exact iff every slot read was exact, else MIXED with the union of the taints read

No rule asks the scheduler or a block hash what is exact. This module knows slots and records, no requests' states.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from vllm.multimodal.inputs import MultiModalFeatureSpec

from acmserve.engine.worker.copies import KVCopy
from tests.support.simulator.failure import SimulationFailure, ensure
from tests.support.simulator.truth import MIXED, Owner, Record, Sequence, is_image


@dataclass
class Reader:
    """Who a request is, and what it ought to see. `owner` is None for a request without session.

    `features` are the images of its prompt.
    """

    request_id: str
    sequence: Sequence
    owner: Owner | None
    reuse: bool
    num_seen: int = 0
    features: list[MultiModalFeatureSpec] = field(default_factory=list)

    def image_at(self, position: int) -> str | None:
        """The image whose token stands at a position."""
        places = ((feature.identifier, feature.mm_position) for feature in self.features)
        return next((name for name, p in places if p.offset <= position < p.offset + p.length), None)

    def is_exact(self, record: Record, position: int) -> bool:
        return record.origin == self.sequence.exact(position).origin

    def inexact(self, records: list[Record], start: int) -> list[Record]:
        """Those that are not exact, of the records of positions from `start` on."""
        exact = self.sequence.between(start, start + len(records))
        if records == exact:
            return []
        return [record for record, own in zip(records, exact, strict=True) if record.origin != own.origin]

    def check(self, record: Record | None, position: int, what: str) -> Record:
        """`record` at `position`, after checking that this request may use it there."""
        own = self.sequence.exact(position)
        if record is not None and (record.origin == own.origin or self._may_use(record, own)):
            return record
        where = f"{self.request_id} {what} position {position}"
        if record is None:
            raise SimulationFailure("poison", f"{where}: nobody wrote this slot")
        wanted = self.sequence.token(position)
        ensure(record.token == wanted, "token", f"{where}: finds token {record.token}, wants {wanted}")
        ensure(record.position == position, "position", f"{where}: finds KV of position {record.position}")
        shift = self.sequence.exact(position).shift
        ensure(record.shift == shift, "position", f"{where}: its keys are turned by {record.shift - shift} too much")
        ensure(bool(record.taint), "leak", f"{where}: not exact, and nobody moved it: {record}")
        ensure(record.taint == {self.owner}, "leak", f"{where}: {self.owner} reads KV moved by {set(record.taint)}")
        ensure(self.reuse, "leak", f"{where}: moved KV answers a request that asked for exact")
        return record

    def _may_use(self, record: Record, own: Record) -> bool:
        """All that `check` asks of moved KV, without the messages: it is asked a million times."""
        same = record.token == own.token and record.position == own.position and record.shift == own.shift
        return same and self.reuse and record.taint == {self.owner}


@dataclass
class SlotMemory:
    """All slots of one worker in the layers of one KV cache group. Each query reads `window` tokens, its own included.

    With `chunked` it reads from the last multiple of `window` on.
    `seen` holds, per session and salt, the origins of everything it has served.
    """

    num_blocks: int
    block_size: int
    window: int | None = None
    seen: dict[Owner, set[int]] = field(default_factory=dict)
    chunked: bool = False

    def __post_init__(self) -> None:
        self.slots: list[Record | None] = [None] * (self.num_blocks * self.block_size)

    def poison(self, block_ids: Iterable[int]) -> None:
        """Forget what the blocks hold: they were handed out again."""
        for block_id in block_ids:
            start = block_id * self.block_size
            self.slots[start : start + self.block_size] = [None] * self.block_size

    def copy_block(self, src: int, dst: int) -> None:
        """vLLM's own copy-on-write of one whole block."""
        size = self.block_size
        self.slots[dst * size : (dst + 1) * size] = self.slots[src * size : (src + 1) * size]

    def read(self, reader: Reader, table: list[int], end: int, start: int = 0) -> list[Record]:
        """Records of positions `[start, end)` through the block table, each checked."""
        size = self.block_size
        ensure(len(table) * size >= end, "table", f"{reader.request_id}: {len(table)} blocks for {end} tokens")
        found: list[Record | None] = []
        for block_id in table[start // size : -(-end // size)]:
            found += self.slots[block_id * size : (block_id + 1) * size]
        found = found[start % size : start % size + end - start]
        exact = reader.sequence.between(start, end)
        if found == exact:
            return exact
        return [
            record if record is own else reader.check(record, start + index, "reads")
            for index, (record, own) in enumerate(zip(found, exact, strict=True))
        ]

    def read_from(self, position: int) -> int:
        """First position that a query at `position` reads."""
        if self.window is None:
            return 0
        return position // self.window * self.window if self.chunked else max(0, position - self.window + 1)

    def remember(self, reader: Reader, end: int) -> None:
        """Note that `reader`'s session has served its tokens `[0, end)`."""
        if reader.owner is not None:
            seen = self.seen.setdefault(reader.owner, set())
            seen.update(reader.sequence.exact(p).origin for p in range(reader.num_seen, end))
            reader.num_seen = max(reader.num_seen, end)

    def moved(self, reader: Reader, copy: KVCopy) -> list[tuple[int, int, Record]]:
        """What `copy` does for `reader`: (source slot, destination slot, record), checked, nothing written."""
        sources = self.range_slots(copy.src_block_ids, copy.src_start, copy.num_tokens)
        targets = self.range_slots(copy.dst_block_ids, copy.dst_start, copy.num_tokens)
        return [
            (src, dst, self._moved_record(reader, copy, index, self.slots[src]))
            for index, (src, dst) in enumerate(zip(sources, targets, strict=True))
        ]

    def _moved_record(self, reader: Reader, copy: KVCopy, index: int, record: Record | None) -> Record:
        position = copy.dst_start + index
        where = f"{reader.request_id} copies position {copy.src_start + index} to {position}"
        if record is None:
            raise SimulationFailure("poison", f"{where}: nobody wrote the source")
        found = f"source holds position {record.position}"
        ensure(record.position == copy.src_start + index, "position", f"{where}: {found}")
        if copy.delta == 0 and reader.is_exact(record, position):
            return reader.sequence.exact(position)
        self._check_source(reader, record, where)
        origin = record.origin if copy.delta == 0 else MIXED
        assert reader.owner is not None
        ensure(not (copy.delta and is_image(record.token)), "token", f"{where}: an image is moved")
        moved = Record(record.token, position, origin, record.taint | {reader.owner}, record.shift)
        return reader.check(moved, position, "copies to")

    def _check_source(self, reader: Reader, record: Record, where: str) -> None:
        """Raise unless the session itself served this KV, or moved it."""
        ensure(reader.owner is not None, "leak", f"{where}: a request without session moves KV")
        assert reader.owner is not None
        if record.taint:
            ensure(record.taint == {reader.owner}, "leak", f"{where}: source was moved by {set(record.taint)}")
        else:
            served = record.origin in self.seen.get(reader.owner, ())
            ensure(served, "leak", f"{where}: {reader.owner} never served the source {record}")

    def range_slots(self, block_ids: tuple[int, ...], start: int, num_tokens: int) -> list[int]:
        """Slots of positions `[start, start + num_tokens)`. `block_ids[0]` holds `start`, and no block is spare."""
        size = self.block_size
        offset = start % size
        covers = (len(block_ids) - 1) * size < offset + num_tokens <= len(block_ids) * size
        ensure(covers, "table", f"{len(block_ids)} blocks for {num_tokens} tokens from offset {offset}")
        return [block_ids[p // size] * size + p % size for p in range(offset, offset + num_tokens)]
