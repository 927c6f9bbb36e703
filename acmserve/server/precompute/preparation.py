"""What somebody asked to have precomputed: one preparation, and those of a session.

pending --> ready       all of it is in the KV cache, until somebody needs the room more
       '--> dropped     the session's next request came first (`interrupted`), the engine had no room, or what was
                        redacted has to be forgotten first (`forgets_first`). What was computed stays
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from acmserve.context.session.state import SessionState
from acmserve.context.tools.run import SummaryWanted
from acmserve.errors import NotFound

MAX_PREPARATIONS = 64
MAX_SUMMARIES = 256
INTERRUPTED = "interrupted"
FAILED = "failed"
FORGETS_FIRST = "forgets_first"


@dataclass(slots=True)
class Preparation:
    """`computed_tokens` and `ready_tokens` are None until the engine has reported them. `reason` says why it was
    dropped.

    `num_new` counts the tokens that an exact prefill computes of it, about. `state` is let go of at the end.
    """

    prepare_id: str
    state: SessionState | None
    num_new: int
    status: Literal["pending", "ready", "dropped"] = "pending"
    computed_tokens: int | None = None
    ready_tokens: int | None = None
    reason: str | None = None

    def end(self, receipt: Mapping[str, Any] | None, num_cut: int = 0) -> None:
        """Take in what the engine said of it. `num_cut` tokens were not asked for."""
        if receipt is None:
            self.drop(FAILED)
            return
        self.state = None
        self.computed_tokens, self.ready_tokens = receipt["computed_tokens"], receipt["prompt_tokens"]
        reason = receipt["fallback_reason"] or ("precompute_pool_share" if num_cut else None)
        self.status, self.reason = ("ready", None) if reason is None else ("dropped", reason)

    def drop(self, reason: str) -> None:
        """It is computed no further."""
        if self.status == "pending":
            self.status, self.reason, self.state = "dropped", reason, None


@dataclass(slots=True)
class Preparations:
    """The last ones of a session, by id, and the summaries that were written for them."""

    summaries: dict[SummaryWanted, str] = field(default_factory=dict)
    _made: OrderedDict[str, Preparation] = field(default_factory=OrderedDict)
    _num_made: int = 0

    def add(self, state: SessionState, num_new: int) -> Preparation:
        """A new one, pending."""
        self._num_made += 1
        made = Preparation(f"p{self._num_made:05x}", state, num_new)
        self._made[made.prepare_id] = made
        while len(self._made) > MAX_PREPARATIONS:
            self._made.popitem(last=False)[1].drop(INTERRUPTED)
        return made

    def get(self, prepare_id: str) -> Preparation:
        """The preparation of that id. Raises `NotFound`."""
        if prepare_id not in self._made:
            known = ", ".join(self._made) or "none"
            raise NotFound("prepare_id", f"there is no preparation {ascii(prepare_id)[:40]}.", f"Known: {known}.")
        return self._made[prepare_id]

    def next(self) -> Preparation | None:
        """The oldest that is pending."""
        return next((made for made in self._made.values() if made.status == "pending"), None)

    def keep(self, written: Mapping[SummaryWanted, str]) -> None:
        """Keep summaries for the edits themselves, the last ones."""
        self.summaries.update(written)
        for wanted in list(self.summaries)[:-MAX_SUMMARIES]:
            del self.summaries[wanted]

    def drop(self, reason: str) -> None:
        """Compute none of them any further. The summaries stay: the edits may still come."""
        for made in self._made.values():
            made.drop(reason)
