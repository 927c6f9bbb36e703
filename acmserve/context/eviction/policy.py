"""What a policy is: it decides what leaves a conversation so that a target is met. The registry lists all of them.

A policy is a frozen dataclass whose fields are its options. It is built anew from a budget, it keeps nothing between
two plans, and the same view gives the same plan. It carries nothing out.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.plan import EvictionPlan
from acmserve.context.session.policy_option import Option


class Policy(Protocol):
    """`summary` is one line for the documentation, and `options` are the keywords that its class takes.

    With `needs_episodes` it reads the episodes that the `delimiter` tool marks. With `needs_model` a summary is written
    for it: then `plan` raises `InvalidRequest`, and whoever carries it out asks the model (`compact`).
    """

    summary: ClassVar[str]
    options: ClassVar[tuple[Option, ...]]
    needs_episodes: ClassVar[bool]
    needs_model: ClassVar[bool]

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        """What to take out until at most `target` tokens are shown, on top of what is left out already. Pure."""
