"""Policies that lack one half of `cwl`, each as a policy of another package: the controls of long sessions."""

from __future__ import annotations

from typing import ClassVar

from acmserve.context.episodes.view import ConversationView
from acmserve.context.eviction.cwl import Cwl
from acmserve.context.eviction.plan import EvictionPlan


class LastingNotes(Cwl):
    """Algorithm 1 as the paper has it: marked episodes alone, and their descriptions stay for ever."""

    summary: ClassVar[str] = "marked episodes alone, whose descriptions stay"

    def plan(self, view: ConversationView, target: int) -> EvictionPlan:
        return self.plan_marked(view, target)
