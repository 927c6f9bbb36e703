"""The counts of a run, and of many."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Report:
    """What happened in one run, so that a suite can prove that its scripts reach what they are for."""

    num_steps: int = 0
    num_finished: int = 0
    num_aborted: int = 0
    num_preemptions: int = 0
    num_resets: int = 0
    num_turned_tokens: int = 0
    num_moved_requests: int = 0
    num_requests_with_holes: int = 0
    num_forgets: int = 0
    num_forgotten_keys: int = 0
    num_forgets_beside_live_requests: int = 0
    num_precomputed_tokens: int = 0
    num_repaired_tokens: int = 0
    num_kept_boundaries: int = 0
    num_restored_states: int = 0
    num_answer_states: int = 0
    background: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    fallback_reasons: Counter[str] = field(default_factory=Counter)

    def __iadd__(self, other: Report) -> Report:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        return self
