r"""Changes of a context map as a whole: what a query taught it, and what a person set.

    Distiller's tags --> scores --> Cartographer's operations --> Evictor --> the next map, its history one longer
                                                            \-- no Evictor: what still fits, and no step is left

Pure: maps and answers in, a map out, always valid and within its budget. It asks no model (`server/maps/updates.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from acmserve.context.maps.answers import Charted, Distilled
from acmserve.context.maps.eviction import plan_eviction
from acmserve.context.maps.history import MapChange, OperationNote, shorten
from acmserve.context.maps.item import SCORES, MapItem
from acmserve.context.maps.map import MAX_BUDGET, MAX_EVOLVE_STEPS, ContextMap
from acmserve.context.maps.operation import MAX_OPERATIONS, apply_operations
from acmserve.context.maps.rules import MapRules
from acmserve.context.maps.text import parse_map
from acmserve.errors import InvalidRequest

FULL = "the map is full, and evicts nothing"


@dataclass(frozen=True, slots=True)
class Learned:
    """The two answers of one update, and whose query they are about. `seen` is the map that the models were shown.

    Where nothing is evicted (`evicts`), a map that would exceed its budget takes the operations up to there.
    """

    distilled: Distilled
    charted: Charted
    seen: ContextMap
    session_id: str = ""
    evicts: bool = True


@dataclass(frozen=True, slots=True)
class MapSettings:
    """What a person sets of a map. None leaves it as it is."""

    text: str | None = None
    budget: int | None = None
    evolve_steps: int | None = None
    pinned: bool | None = None


def learn(context_map: ContextMap, learned: Learned, rules: MapRules, at: float) -> ContextMap:
    """The map after an update by models. It counts as one of the `evolve_steps`, or as all that are left."""
    scored = _scored(context_map, learned.distilled)
    edited, notes = apply_operations(scored, learned.charted.operations, learned.seen, rules)
    num_steps, evicted = context_map.num_steps + 1, plan_eviction(edited, rules)
    if evicted and not learned.evicts:
        edited, notes = _filled(scored, learned, rules)
        num_steps, evicted = max(num_steps, context_map.evolve_steps), ()
    new = _next(context_map, replace(edited.without(evicted), num_steps=num_steps))
    change = MapChange(
        "model",
        at,
        new.version,
        rules.count(new),
        learned.session_id,
        learned.distilled.diagnosis,
        learned.charted.reasoning,
        learned.distilled.tags,
        notes,
        evicted,
        learned.distilled.ignored + learned.charted.ignored,
    )
    return new.noted(change)


def fail(
    context_map: ContextMap, error: str, rules: MapRules, at: float, *, session_id: str, answered: bool
) -> ContextMap:
    """The map after an update that changed nothing. It counts as a step where a model `answered`: calls are bounded."""
    new = replace(context_map, num_steps=context_map.num_steps + answered)
    return new.noted(MapChange("model", at, new.version, rules.count(new), session_id, error=shorten(error)))


def settle(context_map: ContextMap, wanted: MapSettings, rules: MapRules, at: float) -> ContextMap:
    """The map as a person wants it. A smaller budget evicts. A text that exceeds the budget is refused.

    Raises `InvalidRequest` naming what cannot be.
    """
    new = context_map
    if wanted.budget is not None:
        check_range(wanted.budget, "budget", 1, MAX_BUDGET)
        rules.check_budget(wanted.budget, "budget")
        new = replace(new, budget=wanted.budget)
    if wanted.evolve_steps is not None:
        check_range(wanted.evolve_steps, "evolve_steps", 0, MAX_EVOLVE_STEPS)
        new = replace(new, evolve_steps=wanted.evolve_steps)
    if wanted.pinned is not None:
        new = replace(new, pinned=wanted.pinned)
    if wanted.text is not None:
        items, last_number = parse_map(wanted.text, new)
        for item in items:
            rules.check_text(item.text, "text")
        new = replace(new, items=items, last_number=last_number)
        if not rules.fits(new):
            raise InvalidRequest(
                "text",
                f"has {rules.count(new):,} tokens with its headers, the budget is {new.budget:,}.",
                "Shorten it, or raise the budget.",
            )
    evicted: tuple[MapItem, ...] = plan_eviction(new, rules)
    new = _next(context_map, new.without(evicted))
    if new == context_map:
        return context_map
    return new.noted(MapChange("edit", at, new.version, rules.count(new), evicted=evicted))


def check_range(value: object, field: str, least: int, most: int) -> int:
    """The value, when it is an integer from `least` to `most`. Raises `InvalidRequest` else."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidRequest(field, f"must be an integer from {least} to {most:,}, not {ascii(value)[:60]}.")
    return value


def _filled(context_map: ContextMap, learned: Learned, rules: MapRules) -> tuple[ContextMap, tuple[OperationNote, ...]]:
    """The map after as many of the operations as fit, in their order. The others are noted as refused."""
    operations = learned.charted.operations
    _, noted = apply_operations(context_map, operations, learned.seen, rules)
    filled, notes = apply_operations(context_map, (), learned.seen, rules)
    for num in range(1, min(len(operations), MAX_OPERATIONS) + 1):
        more, told = apply_operations(context_map, operations[:num], learned.seen, rules)
        if not rules.fits(more):
            break
        filled, notes = more, told
    rest = (replace(note, refused=note.refused or FULL) for note in noted[len(notes) :])
    return filled, (*notes, *rest)


def _scored(context_map: ContextMap, distilled: Distilled) -> ContextMap:
    gained: Counter[str] = Counter()
    for item_id, tag in distilled.tags:
        gained[item_id] += SCORES[tag]
    items = tuple(replace(item, score=item.score + gained[item.item_id]) for item in context_map.items)
    return replace(context_map, items=items)


def _next(old: ContextMap, new: ContextMap) -> ContextMap:
    """The new map under the next version, when its items or settings are others."""
    changed = replace(new, num_steps=old.num_steps) != old
    return replace(new, version=old.version + changed)
