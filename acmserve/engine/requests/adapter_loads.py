"""Loads of LoRA adapters, told apart where vLLM's block hashes cannot.

vLLM's hashes hold an adapter's name and path. New weights under the old name and path find the old KV there, and vLLM
says so in its log (entrypoints/openai/models/serving.py). Its workers keep adapters by id:

    load "a" from /x                 id 1    the first load: hashes as vLLM makes them
    unload, load "a" from /x         id 2    another load: a key of its own joins the hashes
    load "a" from /x in place        id 1    another load. From here on vLLM reads the files at every step
    /x changes under a loaded "a"    id 1    nobody knows when vLLM reads it again: nothing is reused

Files are compared by name, size and time of change, before vLLM reads them. A path that is no local folder is a name at
a hub, whose files nobody sees here. Loaded in place, it is refused.

Knows names, ids and files. Does not know sessions.

Decision: numbers of loads are never given twice. So a load that was dropped for the bound is another one when it comes
back, and its old KV is not found.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from acmserve.errors import IntegrityError
from acmserve.plan.lineage import digest
from acmserve.plan.owner import Adapter

CHANGED = "adapter: its files were changed while it was loaded; load it again, or from another path"
READ_AGAIN = "adapter: it is read again at every step (load_inplace), and its files are not local"

MAX_LOADS = 10_000

Files = tuple[tuple[str, int, int], ...]
"""Name, bytes and time of change (ns) of each file of a folder, sorted."""


class LoRA(Protocol):
    """What is read of vLLM's `LoRARequest`."""

    lora_name: str
    lora_int_id: int
    lora_path: str
    load_inplace: bool


@dataclass(slots=True)
class _Load:
    adapter: Adapter
    files: Files | None
    is_changed: bool = False


class AdapterLoads:
    """The loads of one engine, the one asked for last at the end."""

    def __init__(self, max_loads: int = MAX_LOADS) -> None:
        self._max_loads = max_loads
        self._loads: OrderedDict[tuple[str, str, int], _Load] = OrderedDict()
        self._known: set[tuple[str, str]] = set()
        self._num_loads = 0
        self._has_dropped = False

    def __len__(self) -> int:
        return len(self._loads)

    def on_load(self, lora: LoRA) -> None:
        """vLLM is about to load an adapter. One that is loaded already stays as it is, unless it goes in place."""
        if lora.load_inplace:
            self._open(_key_of(lora), read_files(lora.lora_path))
        self.note(lora)

    def note(self, lora: LoRA) -> None:
        """Any request came with an adapter, one without session, too: KV of this load may be under vLLM's hashes."""
        key = _key_of(lora)
        if key not in self._loads:
            self._open(key, read_files(lora.lora_path))

    def of(self, lora: LoRA) -> tuple[Adapter, str | None]:
        """The load that a request runs with, and why none of its KV may be reused, if that is so."""
        key, files = _key_of(lora), read_files(lora.lora_path)
        load = self._loads.get(key) or self._open(key, files)
        self._loads.move_to_end(key)
        if load.files != files and lora.load_inplace:
            load = self._open(key, files)
        elif load.files != files:
            load.is_changed = True
        if load.is_changed:
            return self._number(key), CHANGED
        if lora.load_inplace and files is None:
            return self._number(key), READ_AGAIN
        return load.adapter, None

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when there are more loads than allowed, or two of one number."""
        numbers = {load.adapter.load for load in self._loads.values()}
        if len(self) > self._max_loads or len(numbers) < len(self):
            raise IntegrityError(f"adapter loads: {len(self)} with {len(numbers)} numbers, {self._max_loads} allowed")

    def _open(self, key: tuple[str, str, int], files: Files | None) -> _Load:
        load = self._loads[key] = _Load(self._number(key), files)
        self._loads.move_to_end(key)
        while len(self._loads) > self._max_loads:
            (name, path, _), _ = self._loads.popitem(last=False)
            self._known.discard((name, path))
            self._has_dropped = True
        return load

    def _number(self, key: tuple[str, str, int]) -> Adapter:
        """A load of its own. Only the first of its name and path has vLLM's own hashes."""
        name, path, _ = key
        self._num_loads += 1
        is_first = (name, path) not in self._known and not self._has_dropped
        self._known.add((name, path))
        hash_key = None if is_first else digest(b"acm-adapter", name, path, self._num_loads)
        return Adapter(name, path, self._num_loads, hash_key)


def read_files(path: str) -> Files | None:
    """The files of an adapter's local folder. None where `path` is no such folder."""
    try:
        with os.scandir(Path(path).expanduser()) as entries:
            stats = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return None
    return tuple(sorted((name, stat.st_size, stat.st_mtime_ns) for name, stat in stats))


def _key_of(lora: LoRA) -> tuple[str, str, int]:
    return lora.lora_name, lora.lora_path, lora.lora_int_id
