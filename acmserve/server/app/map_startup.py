"""Opens the context maps of a server at its start: from the settings to a `Maps` object."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import State

from acmserve.context.maps.rules import MapRules
from acmserve.context.storage.map_store import MapStore
from acmserve.context.storage.map_table import MapTable
from acmserve.context.transcript.tokenizer import Tokenizer
from acmserve.server.exchange.map_slot import MapSlots
from acmserve.server.maps.maps import Maps
from acmserve.server.maps.updates import MapUpdates
from acmserve.server.models.map_model import open_map_model
from acmserve.server.options.config import ContextConfig


def open_maps(
    config: ContextConfig, state: State, table: MapTable | None, tokenizer: Any, counting: Tokenizer, window: int
) -> Maps:
    """The maps of this server. Raises AcmError where the file that holds them is damaged.

    `tokenizer` is vLLM's, `counting` the same for the context layer, `window` the model's context in tokens.
    """
    rules = MapRules(counting, tuple(getattr(tokenizer, "all_special_tokens", ())))
    updates = MapUpdates(MapStore(table), rules, open_map_model(config, state), window)
    return Maps(updates, MapSlots(tokenizer))
