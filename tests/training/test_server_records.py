"""The record as the server writes it, read here: the writer and the reader share no code, and no words but these."""

from __future__ import annotations

import json

import pytest

from acmserve.context.session.rollout.lines import rollout_lines
from acmserve.context.session.rollout.record import (
    MAIN_THREAD,
    CalledTool,
    Initiator,
    RolloutRecord,
    Sampled,
    sample_thread,
)
from acmserve.context.tools.suites import BRANCHES, CWL, SUITES
from acmserve.training.collection import ALGORITHMS, EDITING_VERBS, Algorithm, collect
from acmserve.training.process_reward import BRANCH_CALL
from acmserve.training.record import ACTORS, read_rollout
from acmserve.training.rollout import MAIN, is_main
from tests.support.training.samples import check_samples, cover
from tests.support.training.sessions import Session, random_session

READING = {"search", "search_detail"}


def written(session: Session) -> list[str]:
    """The session as the server records it. It finds parents by itself."""
    record = RolloutRecord().begun("toy", "sculptor")
    for one in session.completions:
        logprobs = tuple(one.logprob(place) for place in range(len(one.token_ids)))
        calls = tuple(CalledTool(*call) for call in one.calls)
        sampled = Sampled(tuple(one.token_ids), logprobs, "stop", one.format_error, calls)
        record = record.completed(one.prompt, sampled, sample_thread(one.thread, one.sample), one.sample)
        for operation, after in zip(session.operations, session.after, strict=True):
            if after == one.number:
                record = record.operated(Initiator(operation["by"]), str(operation["name"]), {}, None)
    record.check_integrity()
    return [json.dumps(line) for line in rollout_lines(record, session.session_id)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_the_server_writes_is_trained_exactly_once(algorithm: Algorithm) -> None:
    for seed in range(150):
        session = random_session(seed)
        rollout = read_rollout(written(session))
        rollout.check_integrity()
        for one in session.completions:
            assert rollout.prompt_ids(one.number).tolist() == one.prompt
        assert [(one.after, one.by) for one in rollout.operations] == [
            (after, operation["by"]) for operation, after in zip(session.operations, session.after, strict=True)
        ]
        samples = list(collect(rollout, algorithm))
        check_samples(session, samples)
        cover(rollout, samples)


def test_both_sides_use_the_same_words() -> None:
    assert {one.value for one in Initiator} == set(ACTORS)
    assert MAIN_THREAD == MAIN
    assert is_main(sample_thread(MAIN_THREAD, 2))
    assert BRANCH_CALL in {tool.operation for tool in SUITES[BRANCHES].tools}
    operations = {
        tool.operation for name, suite in SUITES.items() if name not in (CWL, BRANCHES) for tool in suite.tools
    }
    assert {one for one in operations if one.partition("_")[0] not in EDITING_VERBS} == READING
