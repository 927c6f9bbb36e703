"""The Evictor: which items leave a context map that exceeds its budget (PEEK, arXiv 2605.19932, section 3.2).

    parsing_schema, error_patterns  -->  reusable_results  -->  domain_constants  -->  roadmap, understanding
    in each step: the lowest score first, of equal scores the oldest

The order is fixed before the first item goes, so as few go as this order allows.
"""

from __future__ import annotations

from bisect import bisect_left

from acmserve.context.maps.item import MapItem
from acmserve.context.maps.map import ContextMap
from acmserve.context.maps.rules import MapRules


def plan_eviction(context_map: ContextMap, rules: MapRules) -> tuple[MapItem, ...]:
    """The items to evict, in order. None where the map is within its budget."""
    order = eviction_order(context_map)

    def fits(num_gone: int) -> bool:
        return rules.fits(context_map.without(order[:num_gone]))

    # Every item that goes makes the text shorter, so the first number that fits is found by halving.
    return order[: bisect_left(range(len(order)), True, key=fits)]


def eviction_order(context_map: ContextMap) -> tuple[MapItem, ...]:
    """All items, the first to be evicted in front."""
    return tuple(sorted(context_map.items, key=lambda item: (item.section.tier, item.score, item.number)))
