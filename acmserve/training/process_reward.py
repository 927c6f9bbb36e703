"""Process rewards of FoldGRPO, from *Scaling Long-Horizon LLM Agent via Context-Folding* (arXiv 2510.11967).

    -1.0   all turns of the main thread that open no branch, where that thread outgrew half of the working context
    -0.2   all turns of a branch that went beyond its task
    -1.0   a turn whose tool call failed

A turn is a completion, and its tokens share the reward. All others have 0. The three rewards, and the half, are those
of Section 2.3.2 of the paper. Does not know whether a branch kept to its
task: somebody judges that, by the branch's prompt and its message.

Decision: where several apply, the lowest counts. The paper does not say, and a sum would leave its range.
"""

from __future__ import annotations

from collections.abc import Collection

from acmserve.errors import InvalidRequest, NotFound
from acmserve.training.rollout import Rollout, SampledCompletion, is_main

UNFOLDED, OUT_OF_SCOPE, FAILED = -1.0, -0.2, -1.0
MAIN_SHARE = 0.5
BRANCH_CALL = "branch"


def process_rewards(
    rollout: Rollout, context_limit: int, out_of_scope: Collection[str] = (), failed: Collection[int] = ()
) -> dict[int, float]:
    """The process reward of each completion. `out_of_scope` names threads, `failed` completions beside format errors.

    Raises `NotFound` for a thread or a completion that the rollout lacks.
    """
    if context_limit < 1:
        raise InvalidRequest("context_limit", f"must be at least 1, not {context_limit}")
    threads = {completion.thread for completion in rollout.completions.values()}
    for thread in out_of_scope:
        if thread not in threads or is_main(thread):
            raise NotFound("out_of_scope", f"names {thread!a}, which is no branch of session {rollout.session_id!a}")
    for number in failed:
        if number not in rollout.completions:
            raise NotFound("failed", f"names completion {number}, which session {rollout.session_id!a} lacks")
    main = [completion for completion in rollout.completions.values() if is_main(completion.thread)]
    is_unfolded = any(completion.num_tokens > MAIN_SHARE * context_limit for completion in main)

    def reward_of(completion: SampledCompletion) -> float:
        reward = 0.0
        if is_unfolded and is_main(completion.thread) and not _opens_branch(completion):
            reward = min(reward, UNFOLDED)
        if completion.thread in out_of_scope:
            reward = min(reward, OUT_OF_SCOPE)
        if completion.number in failed or completion.format_error is not None:
            reward = min(reward, FAILED)
        return reward

    return {number: reward_of(completion) for number, completion in rollout.completions.items()}


def _opens_branch(completion: SampledCompletion) -> bool:
    return any(BRANCH_CALL in (call.name, call.operation) for call in completion.calls)
