"""Context maps: what they hold, and what changed them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from acmserve.client.receipts import StorageWarning


@dataclass(frozen=True, slots=True)
class MapEntry:
    """One item of a map. `score` is the sum of its tags."""

    id: str
    section: str
    text: str
    score: int


@dataclass(frozen=True, slots=True)
class MapDetails:
    """A context map. `text` is what stands in prompts."""

    external_context_id: str
    text: str
    items: tuple[MapEntry, ...]
    tokens: int
    budget: int
    evolve_steps: int
    num_steps: int
    pinned: bool
    frozen: bool
    version: int
    num_pending: int
    num_read_tokens: int
    num_written_tokens: int
    storage: StorageWarning | None = None


@dataclass(frozen=True, slots=True)
class MapOutline:
    """A map without its contents."""

    external_context_id: str
    num_items: int
    version: int
    frozen: bool


@dataclass(frozen=True, slots=True)
class AskedOperation:
    """An operation that the model asked for. `refused` says why it was not carried out, "" where it was."""

    kind: str
    item_id: str
    section: str
    content: str
    refused: str


@dataclass(frozen=True, slots=True)
class EvictedEntry:
    """An item that left the map for its budget."""

    id: str
    text: str
    score: int


@dataclass(frozen=True, slots=True)
class RecordedMapChange:
    """One change of a map. `error` says why an update changed nothing, "" where it went well."""

    kind: Literal["model", "edit"]
    at: float
    version: int
    num_tokens: int
    session_id: str
    diagnosis: str
    reasoning: str
    tags: dict[str, str]
    operations: tuple[AskedOperation, ...]
    evicted: tuple[EvictedEntry, ...]
    ignored: tuple[str, ...]
    error: str
