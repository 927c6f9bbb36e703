"""Opens the context maps of a server at its start: from the settings to a `Maps` object."""

from __future__ import annotations

from typing import Any

from starlette.datastructures import State

from acmserve.context.map_rules import MapRules
from acmserve.context.map_store import MapStore
from acmserve.context.map_table import MapTable
from acmserve.context.tokens import Tokenizer
from acmserve.server.config import ContextConfig
from acmserve.server.map_model import open_map_model
from acmserve.server.map_slot import MapSlots
from acmserve.server.map_updates import MapUpdates
from acmserve.server.maps import Maps


def open_maps(
    config: ContextConfig, state: State, table: MapTable | None, tokenizer: Any, counting: Tokenizer, window: int
) -> Maps:
    """The maps of this server. Raises AcmError where the file that holds them is damaged.

    `tokenizer` is vLLM's, `counting` the same for the context layer, `window` the model's context in tokens.
    """
    rules = MapRules(counting, tuple(getattr(tokenizer, "all_special_tokens", ())))
    updates = MapUpdates(MapStore(table), rules, open_map_model(config, state), window)
    return Maps(updates, MapSlots(tokenizer))
