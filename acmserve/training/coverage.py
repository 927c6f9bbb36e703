"""Checks samples against their rollout while they are written: every sampled token is trained exactly once.

    TokenCoverage(rollout).add(sample) for each sample, then check_integrity()

Knows ids and masks. Does not know the algorithm that made the samples, and reads prompts from the rollout itself.
"""

from __future__ import annotations

import numpy as np

from acmserve.errors import IntegrityError
from acmserve.training.collection import TrainingSample
from acmserve.training.rollout import Rollout


class TokenCoverage:
    """Counts how often each completion of a rollout was trained. A sample that does not fit raises at once."""

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._num_trained = dict.fromkeys(rollout.completions, 0)

    def add(self, sample: TrainingSample) -> None:
        """Raise IntegrityError when a trained completion was trained before, or stands behind another prompt."""
        if len(sample.loss_mask) != len(sample.input_ids):
            raise IntegrityError(f"a mask of {len(sample.loss_mask)} for {len(sample.input_ids)} tokens")
        expected = np.zeros(len(sample.input_ids), dtype=np.bool_)
        for number in sample.trained:
            completion, ids = self._rollout.completions[number], self._rollout.sequence_ids(number)
            if not np.array_equal(sample.input_ids[: len(ids)], ids):
                raise IntegrityError(f"completion {number} is trained behind another prompt than it was served")
            expected[completion.prompt_tokens : completion.num_tokens] = True
            self._num_trained[number] += 1
            if self._num_trained[number] > 1:
                raise IntegrityError(f"completion {number} is trained {self._num_trained[number]} times")
        if not np.array_equal(expected, sample.loss_mask):
            raise IntegrityError(f"the mask of completions {sample.trained} has {sample.loss_mask.sum()} tokens")

    def check_integrity(self) -> None:
        """Raise IntegrityError when a completion with tokens was never trained."""
        missed = [
            number
            for number, times in self._num_trained.items()
            if times == 0 and len(self._rollout.completions[number].token_ids)
        ]
        if missed:
            raise IntegrityError(f"completions {missed[:5]} are in no sample")
