"""All context maps of a server: found by tenant and external context id, bounded in number, written through to a file.

When there are too many, the least recently used map goes of the API key that has most (`fair_share.py`). Its pinned
ones go last. The file is written with best effort: where that fails memory changes all the same. `HeldMap.unsaved` says
why then, and each save that succeeds writes some of those maps, too. It knows no HTTP and asks no model.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from acmserve.context.maps.map import ContextMap
from acmserve.context.storage.fair_share import plan_victims
from acmserve.context.storage.forward_clock import forward
from acmserve.context.storage.map_table import MapKey, MapTable
from acmserve.context.storage.session import Bound
from acmserve.errors import IntegrityError, NotFound, StorageFailed

DEFAULT_MAX_MAPS = 1024
_MAX_HEALED = 8  # written beside another map, once the file can be written again


@dataclass(slots=True, eq=False)
class HeldMap:
    """A map in its store, whose fields are changed by `MapStore` and by nobody else.

    `unsaved` says why the file lacks what it is. None where the file has it, or where there is none.
    """

    key: MapKey
    context_map: ContextMap
    unsaved: StorageFailed | None = None


class MapStore:
    """The maps in memory, and in `table` where one is given."""

    def __init__(
        self,
        table: MapTable | None = None,
        max_maps: int = DEFAULT_MAX_MAPS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.clock = forward(clock)
        self.on_failure: Callable[[StorageFailed], None] = lambda failure: None
        self._erased: set[MapKey] = set()
        self._table = table
        self._max_maps = max_maps
        self._maps: OrderedDict[MapKey, HeldMap] = OrderedDict()
        for stored in table.load() if table is not None else ():
            self._maps[stored.key] = HeldMap(stored.key, stored.context_map)

    def __len__(self) -> int:
        return len(self._maps)

    def find(self, key: MapKey) -> HeldMap | None:
        """The map, None where there is none. Counts as use."""
        if key in self._maps:
            self._maps.move_to_end(key)
        return self._maps.get(key)

    def get(self, key: MapKey) -> HeldMap:
        """The map. Raises `NotFound`."""
        held = self.find(key)
        if held is None:
            raise NotFound(
                "external_context_id",
                f"there is no map of {key[1]!a}.",
                "PUT makes one, and so does a chat request whose acm.map names this external context.",
            )
        return held

    def create(self, key: MapKey, context_map: ContextMap) -> HeldMap:
        """A new map under a key that has none. Another one goes where there are too many."""
        dropped = self._pushed_out(key)
        self._erased.update(dropped)
        for gone in dropped:
            del self._maps[gone]
        held = self._maps[key] = HeldMap(key, context_map)
        self._write(held)
        return held

    def save(self, held: HeldMap, context_map: ContextMap) -> bool:
        """Set the contents of a map. False, and nothing done, where it was deleted meanwhile."""
        if not self.holds(held):
            return False
        held.context_map = context_map
        self._maps.move_to_end(held.key)
        self._write(held)
        return True

    def holds(self, held: HeldMap) -> bool:
        """Whether this very map is still here."""
        return self._maps.get(held.key) is held

    def delete(self, key: MapKey) -> None:
        """Drop a map, its text in the file included. Raises `NotFound`.

        Raises `StorageFailed` where the file may still hold the text. The map is gone all the same. Call it again.
        """
        if key not in self._erased:
            self.get(key)
        self._maps.pop(key, None)
        self._erased.add(key)
        if self._table is not None:
            try:
                self._table.drop(key)
            except StorageFailed as failure:
                self.on_failure(failure)
                raise
        self._erased.discard(key)

    def list(self, tenant: str) -> list[HeldMap]:
        """The maps of a tenant, by id."""
        return sorted((held for key, held in self._maps.items() if key[0] == tenant), key=lambda held: held.key)

    def close(self) -> None:
        """Write what the file lacks. The file is another's to close."""
        self._heal(len(self))

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when bounds or maps are broken."""
        if len(self._maps) > self._max_maps:
            raise IntegrityError(f"map store: {len(self._maps)} maps of {self._max_maps}")
        for key, held in self._maps.items():
            if key != held.key:
                raise IntegrityError(f"map store: {held.key} is filed as {key}")
            held.context_map.check_integrity()

    def _write(self, held: HeldMap) -> None:
        self._erased.discard(held.key)
        held.unsaved = self._tried(held)
        if held.unsaved is None:
            self._heal(_MAX_HEALED)

    def _heal(self, num_maps: int) -> None:
        """Write so many maps that the file lacks, as long as that succeeds."""
        for held in [held for held in self._maps.values() if held.unsaved is not None][:num_maps]:
            held.unsaved = self._tried(held)
            if held.unsaved is not None:
                break

    def _tried(self, held: HeldMap) -> StorageFailed | None:
        """Why the file could not be written. None where it was, or where there is none."""
        try:
            if self._table is not None:
                self._table.save(held.key, held.context_map, self.clock(), tuple(self._erased))
        except StorageFailed as failure:
            self.on_failure(failure)
            return failure.bare()
        self._erased.clear()
        return None

    def _pushed_out(self, new: MapKey) -> tuple[MapKey, ...]:
        by_use = sorted(self._maps.values(), key=lambda held: held.context_map.pinned)
        order = [*(held.key for held in by_use), new]
        return tuple(plan_victims(dict.fromkeys(order, 1), Bound(self._max_maps, len(order)), new.__eq__))
