"""Steps of one scheduler, of three kinds, for Valgrind to count.

    decode     64 requests decode a token each, as in `bench_step.py`
    prefill    a step is full of chunks, and each ends one prompt and begins another one
    mixed      63 requests decode beside chunks of prompts

No model and no device: the connector's half in the scheduler is all that differs. Prints what each step scheduled as a
line of JSON.
"""

from __future__ import annotations

import gc
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from acmserve.bench.micro.bench_step import NUM_REQUESTS, make_request, open_scheduler, take_step
from acmserve.bench.micro.instructions import counting

DECODE, PREFILL, MIXED = "decode", "prefill", "mixed"
KINDS = (DECODE, PREFILL, MIXED)
NUM_STEPS, NUM_WARMUP_STEPS = 16, 8
PROMPT_TOKENS, CHUNK_TOKENS = 1000, 256
_NUM_PROMPTS = 4


def main(column: str) -> None:
    """Every kind in turn, on a scheduler of its own."""
    with tempfile.TemporaryDirectory(prefix="acmserve-bench-") as folder:
        schedulers = {kind: open_scheduler(Path(folder), column) for kind in KINDS}
        scheduled = {kind: _take_steps(schedulers[kind], kind, NUM_WARMUP_STEPS, lambda part: None) for kind in KINDS}
        gc.collect()
        gc.disable()
        with counting() as end_part:
            for kind in KINDS:
                scheduled[kind] += _take_steps(schedulers[kind], kind, NUM_STEPS, end_part)
    print(json.dumps(scheduled))


def _take_steps(scheduler: Any, kind: str, num_steps: int, end_part: Callable[[str], None]) -> list[dict[str, int]]:
    """A part for each step. What arrives does so in front of it."""
    scheduled = []
    for _ in range(num_steps):
        _let_in(scheduler, kind)
        end_part("arrivals")
        scheduled.append(take_step(scheduler))
        end_part(kind)
    return scheduled


def _let_in(scheduler: Any, kind: str) -> None:
    """As many requests as the next step of this kind needs."""
    if kind == DECODE:
        _fill(scheduler, NUM_REQUESTS, _add_decoding)
    elif kind == PREFILL:
        _fill(scheduler, 2 * _NUM_PROMPTS, _add_prompt)
    else:
        scheduler.scheduler_config.long_prefill_token_threshold = CHUNK_TOKENS
        if not scheduler.requests:
            _fill(scheduler, NUM_REQUESTS - 1, _add_decoding)
        _fill(scheduler, NUM_REQUESTS, _add_prompt)


def _fill(scheduler: Any, num_requests: int, add: Callable[[Any, int], None]) -> None:
    while len(scheduler.requests) < num_requests:
        # The scheduler forgets those that have ended.
        scheduler.num_let_in = getattr(scheduler, "num_let_in", 0) + 1
        add(scheduler, scheduler.num_let_in)


def _add_decoding(scheduler: Any, number: int) -> None:
    scheduler.add_request(make_request(f"d{number}", [number * 31 % 997 + place % 7 for place in range(200)], 1000))


def _add_prompt(scheduler: Any, number: int) -> None:
    prompt = [(number * 31 + place) % 997 for place in range(PROMPT_TOKENS)]
    scheduler.add_request(make_request(f"p{number}", prompt, max_tokens=1))
