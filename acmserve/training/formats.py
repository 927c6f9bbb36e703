"""What a trainer reads, as one function for each format: a sample becomes a row of JSON. `FORMATS` is the only list.

    jsonl   all that is known: input_ids, loss_mask, logprobs, reward, advantage
    sft     TRL's `SFTTrainer`, and transformers: input_ids, labels with -100 where there is no loss
    trl     TRL's `GRPOTrainer`, as its `rollout_func` returns it: prompt_ids, completion_ids, logprobs, env_mask
    verl    verl's `AgentLoopOutput`: prompt_ids, response_ids, response_mask, response_logprobs, reward_score

Imports no trainer. Rows of `trl` and `verl` begin their completion at the first token with a loss, and end it behind
the last one. What a trainer has no field for is in fields that it hands on.

Decision: with FoldGRPO a row has `advantages`, one for each token. Else it has one `advantage`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from acmserve.errors import InvalidRequest
from acmserve.training.collection import TrainingSample
from acmserve.training.credit import Credits
from acmserve.training.rollout import Rollout

Row = dict[str, Any]
IGNORED_LABEL = -100


@dataclass(frozen=True, slots=True)
class Format:
    """`summary` is the line of the command's help."""

    summary: str
    row: Callable[[Rollout, TrainingSample, Credits | None], Row]


def _jsonl(rollout: Rollout, sample: TrainingSample, earned_by: Credits | None) -> Row:
    return {
        "session_id": sample.session_id,
        "thread": sample.thread,
        "completions": list(sample.trained),
        "input_ids": sample.input_ids.tolist(),
        "loss_mask": sample.loss_mask.astype(int).tolist(),
        "logprobs": None if sample.logprobs is None else _floats(sample.logprobs),
        **_earned(rollout, sample, earned_by, 0, len(sample.input_ids)),
    }


def _sft(_: Rollout, sample: TrainingSample, __: Credits | None) -> Row:
    labels = np.where(sample.loss_mask, sample.input_ids, IGNORED_LABEL)
    return {"input_ids": sample.input_ids.tolist(), "labels": labels.tolist()}


def _trl(rollout: Rollout, sample: TrainingSample, earned_by: Credits | None) -> Row:
    if sample.logprobs is None:
        raise InvalidRequest(
            "logprobs",
            f"are missing in session {sample.session_id!a}, completions {list(sample.trained)}, and TRL needs them.",
            "Ask for them in the rollout, or export another format.",
        )
    start, end = _trained_range(sample)
    return {
        "prompt_ids": sample.input_ids[:start].tolist(),
        "completion_ids": sample.input_ids[start:end].tolist(),
        "logprobs": _floats(sample.logprobs[start:end]),
        "env_mask": sample.loss_mask[start:end].astype(int).tolist(),
        "session_id": sample.session_id,
        **_earned(rollout, sample, earned_by, start, end),
    }


def _verl(rollout: Rollout, sample: TrainingSample, earned_by: Credits | None) -> Row:
    start, end = _trained_range(sample)
    earned = _earned(rollout, sample, earned_by, start, end)
    return {
        "prompt_ids": sample.input_ids[:start].tolist(),
        "response_ids": sample.input_ids[start:end].tolist(),
        "response_mask": sample.loss_mask[start:end].astype(int).tolist(),
        "response_logprobs": None if sample.logprobs is None else _floats(sample.logprobs[start:end]),
        "reward_score": earned.pop("reward", None),
        "num_turns": 2 * len(sample.trained),
        "metrics": {},
        "extra_fields": {"session_id": sample.session_id, "thread": sample.thread, **earned},
    }


FORMATS: Mapping[str, Format] = {
    "jsonl": Format("all that is known of a sample", _jsonl),
    "trl": Format("for GRPOTrainer of TRL, as a rollout_func returns it", _trl),
    "verl": Format("for verl, as an AgentLoopOutput", _verl),
    "sft": Format("for SFTTrainer of TRL, input_ids and labels", _sft),
}


def _trained_range(sample: TrainingSample) -> tuple[int, int]:
    """From the first token with a loss to behind the last one."""
    places = np.flatnonzero(sample.loss_mask)
    return int(places[0]), int(places[-1]) + 1


def _earned(rollout: Rollout, sample: TrainingSample, earned_by: Credits | None, start: int, end: int) -> Row:
    """Reward, group and advantage, the latter for the tokens `[start, end)` where they differ."""
    if earned_by is None:
        return {}
    first = earned_by[sample.trained[0]]
    if first.advantage is None:
        return {"reward": first.reward}
    earned: Row = {"reward": first.reward, "group": first.group}
    if first.is_shared:
        return {**earned, "advantage": first.advantage}
    advantages = np.zeros(len(sample.input_ids), dtype=np.float32)
    for number in sample.trained:
        completion = rollout.completions[number]
        advantages[completion.prompt_tokens : completion.num_tokens] = earned_by[number].advantage
    return {**earned, "advantages": _floats(advantages[start:end])}


def _floats(values: NDArray[np.float32]) -> list[float]:
    """The shortest numbers that read back as the same float32."""
    return [float(text) for text in values.astype(str)]
