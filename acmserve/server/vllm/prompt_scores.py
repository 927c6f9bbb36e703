"""Log probabilities of the last tokens of a prompt, asked of vLLM without computing the prompt anew.

    prompt   [ found in the prefix cache .......... ][ computed ... scored tokens ]
    rows                                                            ^ the only ones that the scheduler lets pass

vLLM reads no prefix cache where a prompt's log probabilities are asked for, so that it can tell all of them. Here the
request says by itself that it may. Rows of tokens that were found there hold nothing: who asks reads the receipt.
"""

from __future__ import annotations

from vllm.sampling_params import SamplingParams

from acmserve.plan.request import SCORED_TOKENS


def score_last_tokens(sampling: SamplingParams, num_scored: int) -> None:
    """Have a request tell the log probability and the rank of each of the last `num_scored` tokens of its prompt."""
    sampling.prompt_logprobs, sampling.flat_logprobs = 0, True
    sampling.skip_reading_prefix_cache = False
    sampling.extra_args = {**(sampling.extra_args or {}), SCORED_TOKENS: num_scored}
