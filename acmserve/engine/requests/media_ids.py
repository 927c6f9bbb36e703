"""Prompts with images and other media, as plans read them: each item's tokens get an id of its own, below zero.

    prompt of vLLM     [12 40][151655 151655 151655][7 9]      a placeholder token says nothing of the image
    prompt of a plan   [12 40][    -2     -2     -2][7 9]      the item's id: its hash, its kind and its length

So two prompts are equal where their tokens and media are. vLLM names an item by its hash, or as the client named it.

Decision: ids are never given twice. An item that was dropped for the bound gets another id when it comes back. Its KV
is not found then, and no other item's is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from acmserve.errors import IntegrityError
from acmserve.plan.rules.media import FIRST_MEDIA_ID
from acmserve.plan.source import Tokens

if TYPE_CHECKING:
    from acmserve.engine.vllm.types import MultiModalFeatureSpec

MAX_ITEMS = 65_536


class MediaIds:
    """The ids of one engine's media, those used last at the end."""

    def __init__(self, max_items: int = MAX_ITEMS) -> None:
        self._max_items = max_items
        self._ids: OrderedDict[tuple[str, str, int], int] = OrderedDict()
        self._next_id = FIRST_MEDIA_ID

    def __len__(self) -> int:
        return len(self._ids)

    def encode(self, token_ids: Sequence[int], media: Sequence[MultiModalFeatureSpec]) -> Tokens:
        """The prompt as int32 [n], with the ids of its media in place of their tokens."""
        prompt = np.fromiter(token_ids, dtype=np.int32)
        for item in media:
            place = item.mm_position
            key = (item.modality, item.identifier, place.length)
            prompt[place.offset : place.offset + place.length] = self._id_of(key)
        return prompt

    def check_integrity(self) -> None:
        """Raise `IntegrityError` when there are more items than allowed, or two of one id."""
        if len(self) > self._max_items or len(set(self._ids.values())) < len(self):
            raise IntegrityError(f"media ids: {len(self)} items, {self._max_items} allowed, or two of one id")

    def _id_of(self, key: tuple[str, str, int]) -> int:
        if key not in self._ids:
            self._ids[key] = self._next_id
            self._next_id -= 1
        self._ids.move_to_end(key)
        while len(self._ids) > self._max_items:
            self._ids.popitem(last=False)
        return self._ids[key]


def overlap(media: Sequence[MultiModalFeatureSpec]) -> bool:
    """Whether two items share a token, as the sound of a video may. Such prompts have no ids."""
    spans = sorted((item.mm_position.offset, item.mm_position.offset + item.mm_position.length) for item in media)
    return any(end > start for (_, end), (start, _) in pairwise(spans))
