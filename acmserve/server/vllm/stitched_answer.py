"""One answer out of the tokens of several engine requests, as vLLM's front end would have made it of one request.

    engine requests   exact [t0]      verification [.. d1 d2 d3][t4]        rest [t5] [t6] "stop"
    answer                  t0        d1  d2  d3  t4                             t5   t6  "stop"
                      one detokenizer, one search for stop strings, one output for each token

The requests have neither text nor stop strings (`tokens_only`). Both are judged here, token by token, with vLLM's own
detokenizer. So a parser of tool calls gets the deltas that it would get of the request alone.

It does not know which token is verified: who calls adds none before.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from vllm.outputs import CompletionOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import IncrementalDetokenizer

UNCHANGED = (
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "max_tokens",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "output_kind",
    "stream_interval",
    "skip_clone",
    "output_text_buffer_length",
    "extra_args",
)
"""What leaves the likeliest token the likeliest one. Every other parameter has to be at its default."""


def find_parameter_refusal(sampling: SamplingParams) -> str | None:
    """The parameter for which an answer cannot be verified by the likeliest tokens, in words. None where it can."""
    if sampling.temperature != 0:
        return f"temperature is {sampling.temperature:g}, only greedy answers are verified"
    default = SamplingParams()
    names = (name for name in sampling.__struct_fields__ if not name.startswith("_") and name not in UNCHANGED)
    changed = next((name for name in names if getattr(sampling, name) != getattr(default, name)), None)
    if changed is not None:
        return f"{changed} is set, which verification does not know"
    if set(sampling.extra_args or {}) - {"kv_transfer_params"}:
        return "extra arguments are set, which verification does not know"
    return None


def tokens_only(sampling: SamplingParams, max_tokens: int) -> SamplingParams:
    """The parameters of a request that gives tokens as they come. `sampling` stays as it is."""
    made = copy.deepcopy(sampling)
    made.output_kind, made.detokenize = RequestOutputKind.DELTA, False
    made.stop, made.output_text_buffer_length, made.stream_interval = [], 0, None
    made.max_tokens, made.skip_clone = max_tokens, False
    return made


def num_likeliest(output: Any, num_drafted: int, num_known: int) -> int:
    """Of the last `num_drafted` tokens of a prompt, how many are the likeliest ones, from the first on.

    `num_known` of them need no proof. Of tokens whose KV was found in a cache vLLM has no rank: none counts, and none
    behind it. Entries are counted from the end, since some of vLLM's runners leave those of a cached prefix out.
    """
    entries = output.prompt_logprobs
    receipt = ((output.kv_transfer_params or {}).get("acm") or {}).get("receipt")
    if not entries or receipt is None:
        return num_known
    prompt = output.prompt_token_ids
    num_ranked = len(prompt) - 1 - receipt["kept_tokens"] - receipt["moved_tokens"]
    for place in range(num_known, num_drafted):
        num_behind = num_drafted - place
        if num_behind > min(num_ranked, len(entries)):
            return place
        entry = (entries[-num_behind] or {}).get(prompt[-num_behind])
        if entry is None or entry.rank != 1:
            return place
    return num_drafted


class StitchedAnswer:
    """See the module. `template` is the first output of the exact request: its prompt, its counts, its receipt."""

    def __init__(self, tokenizer: Any, sampling: SamplingParams, template: Any) -> None:
        self.is_finished = False
        self._sampling = sampling
        self._template = template
        self._acm = template.kv_transfer_params
        self._new: list[int] = []
        request = EngineCoreRequest(
            request_id=template.request_id,
            prompt_token_ids=list(template.prompt_token_ids),
            mm_features=None,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        shown = tokenizer if sampling.detokenize else None
        self._detokenizer = IncrementalDetokenizer.from_new_request(tokenizer=shown, request=request)

    def add(
        self, token_ids: Sequence[int], finish_reason: str | None = None, stop_reason: int | str | None = None
    ) -> Iterator[Any]:
        """The outputs of these tokens, one for each. The last one ends the answer where there is a `finish_reason`."""
        for index, token in enumerate(token_ids):
            is_last = index == len(token_ids) - 1
            ended = finish_reason if is_last else None
            stop = self._detokenizer.update([token], ended == "stop")
            if stop is not None:
                ended, stop_reason = "stop", stop
            yield from self._told([token], ended, stop_reason if ended is not None else None)
            if self.is_finished:
                return
        if not token_ids and finish_reason is not None:
            yield from self._told([], finish_reason, stop_reason)

    def _told(self, token_ids: list[int], ended: str | None, stop_reason: int | str | None) -> Iterator[Any]:
        self.is_finished = ended is not None
        is_delta = self._sampling.output_kind == RequestOutputKind.DELTA
        if self._sampling.output_kind == RequestOutputKind.FINAL_ONLY and not self.is_finished:
            return
        text = self._detokenizer.get_next_output_text(self.is_finished, is_delta)
        shown = token_ids if is_delta else list(self._detokenizer.output_token_ids)
        output = copy.copy(self._template)
        output.outputs = [CompletionOutput(0, text, shown, None, None, finish_reason=ended, stop_reason=stop_reason)]
        output.finished = self.is_finished
        output.kv_transfer_params = None if self._acm is None else dict(self._acm)
        yield output
