"""Judges samples by what was served and sampled, without a look at how they were made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from acmserve.training.collection import TrainingSample
from acmserve.training.coverage import TokenCoverage
from acmserve.training.rollout import Rollout
from tests.support.training.sessions import Session


def check_samples(session: Session, samples: Iterable[TrainingSample]) -> None:
    """Each sampled token has one loss, behind what was served in front of it, with its own logprob."""
    owners = {one.token_ids[0]: one for one in session.completions if one.token_ids}
    counts: Counter[int] = Counter()
    for sample in samples:
        ids, logprobs = sample.input_ids.tolist(), sample.logprobs
        assert logprobs is not None
        assert len(ids) == len(sample.loss_mask) == len(logprobs)
        assert not logprobs[~sample.loss_mask].any()
        counts.update(sample.input_ids[sample.loss_mask].tolist())
        for place in np.flatnonzero(sample.loss_mask).tolist():
            owner = owners.get(ids[place])
            if owner is not None:
                end = place + len(owner.token_ids)
                assert ids[:end] == owner.sequence
                assert sample.loss_mask[place:end].all()
                assert logprobs[place:end].tolist() == [owner.logprob(at) for at in range(len(owner.token_ids))]
    assert counts == Counter(token for one in session.completions for token in one.token_ids)


def cover(rollout: Rollout, samples: Iterable[TrainingSample]) -> None:
    coverage = TokenCoverage(rollout)
    for sample in samples:
        coverage.add(sample)
    coverage.check_integrity()
