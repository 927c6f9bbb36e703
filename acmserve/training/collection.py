"""Algorithm 1 of *Sculptor* (arXiv 2508.04664): conditional trajectory collection, incremental loss assignment.

    served     P0 C0 | P0 C0 T0 C1 | P0 C0 T0 C1 T1 C2 | P' C3        (C1 cuts text, C2 folds it, P' is the rest)
    paper      [P0 C0* T0 C1* T1]   [P0 C0 T0 C1 T1 C2* T2]   [P' C3*]     * has a loss, each completion once
    prefix     [P0 C0* T0 C1* T1 C2*]                         [P' C3*]

A sample ends where the context is modified, and at the last completion. It trains whatever no sample in front of it
has. `prefix` ends a sample only where the next prompt does not begin with it. Cutting text changes no prefix, so fewer
samples carry the same losses. No policy could need fewer: each such end is a leaf of the tree of prompts.

Decision: `paper`, too, ends a sample where the next prompt does not begin with it, whoever edited. The paper knows
edits of the model only. Training on would put sampled tokens behind a context in which nobody sampled them.

Decision: a completion that several prompts extend (a branch and its main thread, samples of one prompt) goes with the
first of its own thread. So it is trained once. Samples are made one by one, because all of them take quadratic memory.

Decision: completions whose rewards differ share no sample, as where a conversation goes on from another sample of a
prompt. A row has one reward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from acmserve.errors import InvalidRequest
from acmserve.training.rollout import Rollout, SampledCompletion, TokenIds
from acmserve.validation import echo, listing

Algorithm = Literal["paper", "prefix"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
EDITING_VERBS = frozenset({"fragment", "fold", "summarize", "restore"})
"""The paper's set of context-modifying tools, as the first word of an operation: `restore` of `restore_folded`."""


@dataclass(frozen=True, slots=True, eq=False)
class TrainingSample:
    """Token ids with a loss on those that the completions `trained` sampled. All arrays have one length.

    `logprobs` has 0 where there is no loss. It is None where a trained completion has none.
    """

    session_id: str
    thread: str
    trained: tuple[int, ...]
    input_ids: TokenIds
    loss_mask: NDArray[np.bool_]
    logprobs: NDArray[np.float32] | None


def check_algorithm(name: str, field: str = "algorithm") -> Algorithm:
    """The algorithm of that name. Raises `InvalidRequest`."""
    for algorithm in ALGORITHMS:
        if name == algorithm:
            return algorithm
    raise InvalidRequest(field, f"must be {listing(ALGORITHMS)}, not {echo(name)}")


def collect(
    rollout: Rollout, algorithm: Algorithm = "prefix", earns: Callable[[int], object] = lambda number: None
) -> Iterator[TrainingSample]:
    """The samples of a rollout, in the order of the completions that end them. One that trains nothing is left out.

    All completions of a sample have what `earns` says of their numbers in common.
    """
    waiting: dict[int, tuple[int, ...]] = {}
    for completion in rollout.completions.values():
        trained = (*waiting.pop(completion.number, ()), completion.number)
        carrier = _carrier(rollout, completion, algorithm, earns)
        if carrier is not None:
            waiting[carrier.number] = trained
        elif any(len(rollout.completions[number].token_ids) for number in trained):
            yield _sample(rollout, completion, trained, with_result=algorithm == "paper")


def modifies_context(completion: SampledCompletion) -> bool:
    """Whether a call of the completion is in the paper's set of tools. Several calls are one completion."""
    return any(call.operation is not None and _verb(call.operation) in EDITING_VERBS for call in completion.calls)


def _verb(operation: str) -> str:
    return operation.partition("_")[0]


def _carrier(
    rollout: Rollout, completion: SampledCompletion, algorithm: Algorithm, earns: Callable[[int], object]
) -> SampledCompletion | None:
    """The completion whose sample trains this one, too. None: a sample ends here."""
    if algorithm == "paper" and modifies_context(completion):
        return None
    earned, children = earns(completion.number), rollout.children(completion.number)
    extending = [child for child in children if rollout.extends(child) and earns(child.number) == earned]
    own = [child for child in extending if child.thread == completion.thread]
    return next(iter(own or extending), None)


def _sample(
    rollout: Rollout, last: SampledCompletion, trained: tuple[int, ...], *, with_result: bool
) -> TrainingSample:
    """The sequence of the last completion, with a loss on what the trained ones sampled, each at its place in it."""
    ids = rollout.sequence_ids(last.number)
    if with_result:
        ids = np.concatenate([ids, _result_ids(rollout, last)])
    completions = [rollout.completions[number] for number in trained]
    mask = np.zeros(len(ids), dtype=np.bool_)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    for completion in completions:
        place = slice(completion.prompt_tokens, completion.num_tokens)
        mask[place] = True
        if completion.logprobs is not None:
            logprobs[place] = completion.logprobs
    has_logprobs = all(completion.logprobs is not None for completion in completions)
    return TrainingSample(rollout.session_id, last.thread, trained, ids, mask, logprobs if has_logprobs else None)


def _result_ids(rollout: Rollout, last: SampledCompletion) -> TokenIds:
    """What stands behind the completion in the next prompt of its thread: the tool result, without a loss.

    Empty where that prompt does not have the sampled tokens: an edit, or the chat template, wrote them anew.
    """
    following = next((child for child in rollout.children(last.number) if child.thread == last.thread), None)
    if following is None:
        return np.empty(0, dtype=np.int32)
    if rollout.extends(following):
        return following.tail
    tail, sampled = following.tail.tobytes(), last.token_ids.tobytes()
    end = len(tail)
    while sampled and (start := tail.rfind(sampled, 0, end)) >= 0:
        if start % following.tail.itemsize == 0:
            return following.tail[(start + len(sampled)) // following.tail.itemsize :]
        end = start + len(sampled) - 1
    return np.empty(0, dtype=np.int32)
