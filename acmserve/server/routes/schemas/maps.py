"""What the routes of context maps take and give, as pydantic models. Part of the OpenAPI document."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from acmserve.context.maps.map import MAX_BUDGET, MAX_EVOLVE_STEPS
from acmserve.context.maps.text import MAX_TEXT_CHARS
from acmserve.server.routes.schemas.storage import StorageView


class MapRequest(BaseModel):
    """What to set of a map. Fields that are left out, or null, stay as they are. A new map takes the defaults."""

    model_config = ConfigDict(extra="forbid", strict=True)
    text: str | None = Field(
        default=None,
        max_length=MAX_TEXT_CHARS,
        description="The whole map as text, as `GET .../text` exports it: lines with an id keep it, lines without one "
        "are new items, items that are missing are deleted.",
    )
    budget: int | None = Field(
        default=None, ge=1, le=MAX_BUDGET, description="The most tokens of the map, headers included (default 1024)."
    )
    evolve_steps: int | None = Field(
        default=None,
        ge=0,
        le=MAX_EVOLVE_STEPS,
        description="How many queries the map learns from; afterwards it is frozen (default 4).",
    )
    pinned: bool | None = Field(
        default=None, description="Whether models leave the map alone; it is also dropped last (default false)."
    )


class MapItemView(BaseModel):
    """One item of a map."""

    id: str = Field(description="Stays the same as long as the item exists, and is never given again.")
    section: str = Field(description="The section that it stands in.")
    text: str = Field(description="What it says.")
    score: int = Field(description="Sum of its tags: helpful +1, harmful and stale -1.")


class MapView(BaseModel):
    """A context map."""

    external_context_id: str = Field(description="The external context that the map is about.")
    text: str = Field(description="The map as it stands in prompts.")
    items: list[MapItemView] = Field(description="Its items, in the order of the text.")
    tokens: int = Field(ge=0, description="Tokens of the text.")
    budget: int = Field(description="The most tokens that it may have.")
    evolve_steps: int = Field(description="How many queries it learns from.")
    num_steps: int = Field(ge=0, description="Updates by models so far.")
    pinned: bool = Field(description="Whether models leave it alone.")
    frozen: bool = Field(description="Whether no model changes it any more: it is pinned, or its steps are done.")
    version: int = Field(ge=0, description="Counts the changes of items and settings.")
    num_pending: int = Field(ge=0, description="Updates that are under way or wait.")
    num_read_tokens: int = Field(ge=0, description="What its updates by models read so far, in tokens.")
    num_written_tokens: int = Field(ge=0, description="What they wrote, in tokens.")
    storage: StorageView | None = Field(
        default=None,
        description="Why the server's file lacks this map; null where it has it, or where there is none.",
    )


class MapSummary(BaseModel):
    """A map without its contents."""

    external_context_id: str = Field(description="The external context that the map is about.")
    num_items: int = Field(description="Its items.")
    version: int = Field(description="Counts the changes of items and settings.")
    frozen: bool = Field(description="Whether no model changes it any more.")


class MapList(BaseModel):
    """All maps of this API key (and cache salt)."""

    data: list[MapSummary] = Field(description="The maps, by id.")


class MapOperationView(BaseModel):
    """One operation that the Cartographer asked for."""

    kind: str = Field(description="ADD, DELETE or REPLACE; whatever else was asked for is refused.")
    item_id: str = Field(description="The item that is deleted or replaced. Empty for an addition.")
    section: str = Field(description="The section of an addition.")
    content: str = Field(description="The text of the item.")
    refused: str = Field(description="Why it was not carried out; empty where it was.")


class EvictedItem(BaseModel):
    """An item that left the map because the budget was exceeded."""

    id: str = Field(description="The item.")
    text: str = Field(description="What it said.")
    score: int = Field(description="The sum of its tags.")


class MapChangeView(BaseModel):
    """One change of a map."""

    kind: Literal["model", "edit"] = Field(description="An update by models after a query, or an edit by hand.")
    at: float = Field(description="Seconds since the epoch.")
    version: int = Field(description="The version that it made.")
    num_tokens: int = Field(description="Tokens of the map afterwards.")
    session_id: str = Field(description="The session whose query the map learned from.")
    diagnosis: str = Field(description="What the Distiller says about the query.")
    reasoning: str = Field(description="Why the Cartographer wants these operations.")
    tags: dict[str, str] = Field(description="The Distiller's tag of each item.")
    operations: list[MapOperationView] = Field(description="The operations that the Cartographer asked for.")
    evicted: list[EvictedItem] = Field(description="Items that left the map for its budget.")
    ignored: list[str] = Field(description="Parts of an answer that made no sense.")
    error: str = Field(description="Why the update changed nothing; empty where it went well.")


class MapHistory(BaseModel):
    """The last changes of a map, the newest at the end."""

    data: list[MapChangeView] = Field(description="The changes.")
