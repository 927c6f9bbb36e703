"""A context map: a small text about an external context that the prompts of many queries share (PEEK, arXiv:2605.19932,
section 3).

    items     [cr-00001] [cu-00002] [dc-00004]      one counter for all sections. A number is never given twice
    settings  budget in tokens, evolve_steps, pinned, sections
    history   what each update and each edit by hand did

An immutable value: whoever changes it makes another one. It knows neither sessions nor models. How it is written is in
`text.py`, how a model's answers change it in `update.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from acmserve.context.maps.history import MAX_HISTORY, MapChange
from acmserve.context.maps.item import MapItem
from acmserve.context.maps.section import SECTION_NAMES, Section
from acmserve.errors import IntegrityError

DEFAULT_BUDGET = 1024
MAX_BUDGET = 16_384
DEFAULT_EVOLVE_STEPS = 4
MAX_EVOLVE_STEPS = 1_000_000


@dataclass(frozen=True, slots=True)
class ContextMap:
    """Items ascend by number. `num_steps` counts the updates by models, `version` the changes of items or settings.

    `history` ends with the newest change. Older ones than the last `MAX_HISTORY` are left out. `sections` are the names
    of those that it has, in the order of `SECTION_NAMES`. Its updates by models read and wrote so many tokens.
    """

    items: tuple[MapItem, ...] = ()
    last_number: int = 0
    budget: int = DEFAULT_BUDGET
    evolve_steps: int = DEFAULT_EVOLVE_STEPS
    num_steps: int = 0
    pinned: bool = False
    version: int = 0
    history: tuple[MapChange, ...] = ()
    sections: tuple[str, ...] = SECTION_NAMES
    num_read_tokens: int = 0
    num_written_tokens: int = 0

    @property
    def frozen(self) -> bool:
        """Whether no model changes it any more."""
        return self.pinned or self.num_steps >= self.evolve_steps

    def item(self, item_id: str) -> MapItem | None:
        """The item of that id, None where there is none."""
        return next((item for item in self.items if item.item_id == item_id), None)

    def added(self, section: Section, text: str) -> ContextMap:
        """The map with a new item under the next number."""
        number = self.last_number + 1
        return replace(self, items=(*self.items, MapItem(section, number, text)), last_number=number)

    def replaced(self, new: MapItem) -> ContextMap:
        """The map with the item of that number exchanged."""
        return replace(self, items=tuple(new if old.number == new.number else old for old in self.items))

    def without(self, gone: Sequence[MapItem]) -> ContextMap:
        """The map without these items. Their numbers are not given again."""
        numbers = {item.number for item in gone}
        return replace(self, items=tuple(item for item in self.items if item.number not in numbers))

    def noted(self, change: MapChange) -> ContextMap:
        """The map with one more change in its history."""
        return replace(self, history=(*self.history, change)[-MAX_HISTORY:])

    def spent(self, num_read_tokens: int, num_written_tokens: int) -> ContextMap:
        """The map whose updates read and wrote so much more."""
        read, written = self.num_read_tokens + num_read_tokens, self.num_written_tokens + num_written_tokens
        return replace(self, num_read_tokens=read, num_written_tokens=written)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when items are out of order, or settings out of bounds."""
        numbers = [item.number for item in self.items]
        if any(a >= b for a, b in pairwise([0, *numbers])) or max(numbers, default=0) > self.last_number:
            raise IntegrityError(f"map: numbers {numbers[:20]} do not ascend up to {self.last_number}")
        if not 0 < self.budget <= MAX_BUDGET or not 0 <= self.evolve_steps <= MAX_EVOLVE_STEPS or self.num_steps < 0:
            raise IntegrityError(f"map: budget {self.budget}, {self.num_steps} of {self.evolve_steps} steps")
        if self.num_read_tokens < 0 or self.num_written_tokens < 0:
            raise IntegrityError(f"map: {self.num_read_tokens} tokens read, {self.num_written_tokens} written")
        if not self.sections or self.sections != tuple(name for name in SECTION_NAMES if name in self.sections):
            raise IntegrityError(f"map: sections {self.sections}")
        for item in self.items:
            if item.section.name not in self.sections:
                raise IntegrityError(f"map: item {item.item_id} in none of its sections {self.sections}")
            item.check_integrity()
