"""Algorithm 1 on the paper's cases and on a thousand random sessions, judged by what was served and sampled."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from acmserve.errors import IntegrityError, InvalidRequest
from acmserve.training.collection import ALGORITHMS, Algorithm, TrainingSample, check_algorithm, collect
from acmserve.training.coverage import TokenCoverage
from acmserve.training.record import read_rollout
from acmserve.training.rollout import Rollout
from tests.support.training.sessions import HEADER, Served, Session, random_session

NUM_SESSIONS = 1000
Collector = Callable[[Rollout, Algorithm], Iterator[TrainingSample]]


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


def summary(session: Session, algorithm: Algorithm) -> list[tuple[int, ...]]:
    """Which completions each sample trains."""
    samples = list(collect(read_rollout(session.record()), algorithm))
    check_samples(session, samples)
    return [sample.trained for sample in samples]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_thousand_random_sessions(algorithm: Algorithm) -> None:
    seen: Counter[str] = Counter()
    for seed in range(NUM_SESSIONS):
        session = random_session(seed)
        rollout = read_rollout(session.record())
        rollout.check_integrity()
        for one in session.completions:
            assert rollout.prompt_ids(one.number).tolist() == one.prompt
            seen["branch"] += one.thread != "main"
            seen["several calls"] += len(one.calls) > 1
            seen["several samples"] += one.sample > 0
        seen["edit in the last step"] += any(name == "fold_fragment" for name, _ in session.completions[-1].calls)
        seen["no edits"] += not session.operations
        seen["summary by somebody else"] += any(one["by"] == "summary" for one in session.operations)
        samples = list(collect(rollout, algorithm))
        check_samples(session, samples)
        cover(rollout, samples)
    assert min(seen.values()) > 50, seen
    assert len(seen) == 6


def test_prefix_makes_as_many_samples_as_there_are_leaves_of_prompts() -> None:
    """No fewer could train every token behind its own prompt, and `paper` never has fewer."""
    saved = 0
    for seed in range(200):
        session = random_session(seed)
        sequences = [one.sequence for one in session.completions]
        leaves = sum(not any(other != one and other[: len(one)] == one for other in sequences) for one in sequences)
        prefix, paper = summary(session, "prefix"), summary(session, "paper")
        assert len(prefix) == leaves
        assert len(paper) >= len(prefix)
        saved += len(paper) - len(prefix)
    assert saved > 50


def figure_2(operation: str) -> Session:
    """*Sculptor* (arXiv 2508.04664), Figure 2: the third completion edits the context, two more follow."""
    session = Session(random.Random(0))
    context = [session.text(8, 8)]
    parent = None
    for number in range(5):
        edits = number == 2
        one = session.serve(context, [(f"{operation}_fragment", operation) if edits else ("grep", None)], parent=parent)
        context += [[*HEADER, *one.token_ids], session.text()]
        if edits and operation == "fold":
            context[0] = session.text(2, 2)
        parent = one.number
    return session


def test_the_figure_of_the_paper() -> None:
    session = figure_2("fold")
    assert summary(session, "paper") == [(0, 1, 2), (3, 4)]
    assert summary(session, "prefix") == [(0, 1, 2), (3, 4)]
    first, second = collect(read_rollout(session.record()), "paper")
    result = session.completions[3].prompt[-len(first.input_ids) + len(session.completions[2].sequence) :]
    assert first.input_ids.tolist() == session.completions[2].sequence + result
    assert len(result) > 2
    assert second.input_ids.tolist() == session.completions[4].sequence


def test_cutting_changes_no_prefix_so_one_sample_does() -> None:
    session = figure_2("fragment")
    assert summary(session, "paper") == [(0, 1, 2), (3, 4)]
    assert summary(session, "prefix") == [(0, 1, 2, 3, 4)]


def test_several_calls_of_one_completion_are_one_completion() -> None:
    session = Session(random.Random(0))
    context = [session.text()]
    first = session.serve(context, [("fragment_context", "fragment"), ("fold_fragment", "fold"), ("grep", None)])
    session.serve([session.text(), [*HEADER, *first.token_ids], session.text()], parent=0)
    assert summary(session, "paper") == summary(session, "prefix") == [(0,), (1,)]


@pytest.mark.parametrize("calls", [[], [("fold_fragment", "fold")]])
def test_the_last_completion_ends_a_sample_whatever_it_calls(calls: list[tuple[str, str | None]]) -> None:
    session = Session(random.Random(0))
    context = [session.text()]
    first = session.serve(context)
    session.serve([*context, [*HEADER, *first.token_ids]], calls, parent=0)
    assert summary(session, "paper") == [(0, 1)]


def test_an_edit_of_somebody_else_ends_a_sample() -> None:
    """The paper knows none: its algorithm would train both behind a context in which neither was sampled."""
    session = Session(random.Random(0))
    first = session.serve([session.text()])
    session.serve([session.text(), [*HEADER, *first.token_ids]], parent=0)
    assert summary(session, "paper") == summary(session, "prefix") == [(0,), (1,)]


def test_a_branch_shares_what_stands_in_front_of_it_and_main_trains_it() -> None:
    session = Session(random.Random(0))
    context = [session.text()]
    opened = session.serve(context, [("branch", "branch")])
    told = [*context, [*HEADER, *opened.token_ids]]
    session.serve([*told, session.text()], thread="branch-1", parent=0)
    session.serve([*told, session.text()], parent=0)
    assert summary(session, "prefix") == [(1,), (0, 2)]


def test_a_completion_without_tokens_makes_no_sample() -> None:
    session = Session(random.Random(0))
    session.serve([session.text()], num_tokens=0)
    assert summary(session, "paper") == []


def train_all(rollout: Rollout, algorithm: Algorithm) -> Iterator[TrainingSample]:
    """What the paper warns of: each sample trains all completions that it holds."""
    before: tuple[int, ...] = ()
    for sample in collect(rollout, algorithm):
        trained = (*before, *sample.trained)
        mask = sample.loss_mask.copy()
        for number in before:
            one = rollout.completions[number]
            mask[one.prompt_tokens : one.num_tokens] = True
        before = trained
        yield replace(sample, trained=trained, loss_mask=mask)


def train_last(rollout: Rollout, algorithm: Algorithm) -> Iterator[TrainingSample]:
    """Each sample trains its last completion alone."""
    for sample in collect(rollout, algorithm):
        one = rollout.completions[sample.trained[-1]]
        mask = np.zeros_like(sample.loss_mask)
        mask[one.prompt_tokens : one.num_tokens] = True
        yield replace(sample, trained=sample.trained[-1:], loss_mask=mask)


@pytest.mark.parametrize("wrong", [train_all, train_last])
def test_an_exporter_that_trains_a_token_twice_or_never_is_found(wrong: Collector) -> None:
    session = figure_2("fragment")
    rollout = read_rollout(session.record())
    samples = list(wrong(rollout, "paper"))
    with pytest.raises(AssertionError):
        check_samples(session, samples)
    with pytest.raises(IntegrityError, match=r"trained 2 times|in no sample"):
        cover(rollout, samples)


def test_a_sample_behind_another_prompt_and_a_shifted_mask_are_found() -> None:
    rollout = read_rollout(figure_2("fold").record())
    sample = next(collect(rollout))
    with pytest.raises(IntegrityError, match="behind another prompt"):
        TokenCoverage(rollout).add(replace(sample, input_ids=sample.input_ids + 1))
    with pytest.raises(IntegrityError, match="the mask of completions"):
        TokenCoverage(rollout).add(replace(sample, loss_mask=np.roll(sample.loss_mask, 1)))


def long_session(num_steps: int) -> Session:
    session = Session(random.Random(0))
    context, parent = [session.text(20, 20)], None
    for _ in range(num_steps):
        one: Served = session.serve(context, [("fragment_context", "fragment")], parent=parent, num_tokens=8)
        context += [[*HEADER, *one.token_ids], session.text(12, 12)]
        parent = one.number
    return session


def test_memory_is_linear_in_tokens() -> None:
    session = long_session(300)
    longest = len(session.completions[-1].sequence)
    assert sum(len(one.sequence) for one in session.completions) > 100 * longest
    lines = session.record()
    assert sum(map(len, lines)) < 200 * longest
    rollout = read_rollout(lines)
    assert rollout.stored_tokens == longest
    tracemalloc.start()
    try:
        assert sum(1 for _ in collect(rollout, "paper")) == 300
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * longest


def test_an_unknown_algorithm_is_named() -> None:
    with pytest.raises(InvalidRequest, match=r"algorithm: must be 'paper' or 'prefix', not 'literal'"):
        check_algorithm("literal")
