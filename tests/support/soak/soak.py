"""Many sessions on a pool too small for them: every answer is checked, and every block comes back.

    talks --ask--> engine of this process --answers--> reference
                   aborts, preemptions, resets

After a round nobody is left, all blocks are free, and every part of the engine agrees with itself.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from vllm import SamplingParams
from vllm.inputs import TokensPrompt

from tests.support.engine.engine import Engine
from tests.support.soak.reference import MAX_DIFFERENCE, Reference
from tests.support.soak.talk import Ask, Talk, make_talks

SETTINGS: dict[str, Any] = {
    "max_model_len": 2048,
    "skip_tokenizer_init": True,
    "kv_cache_memory_bytes": 64 * 2**20,
    "block_size": 32,
    "num_gpu_blocks_override": 120,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 256,
    "disable_log_stats": False,
}
"""Room for 3,808 tokens. Eight talks of up to 1,500 want three times as many."""


@dataclass
class Found:
    """What a soak counted. `mismatches` are checked answers that no fresh computation gives."""

    counts: Counter[str] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)
    largest_difference: float = 0.0


@dataclass
class _Live:
    ask: Ask
    talk: Talk | None
    num_steps: int = 0


class Soak:
    """One engine of this process under load. `checks_moved`: on a one-layer model moved KV is exact, too."""

    def __init__(self, engine: Engine, reference: Reference, seed: int, *, checks_moved: bool) -> None:
        self.found = Found()
        self._llm = engine.llm.llm_engine
        self._scheduler = self._llm.engine_core.engine_core.scheduler
        self._reference = reference
        self._checks_moved = checks_moved
        self._rng = random.Random(f"soak {seed}")
        self._talks = make_talks(seed, num_talks=8)
        self._live: dict[str, _Live] = {}
        self._num_sent = 0

    @property
    def num_checked(self) -> int:
        return self.found.counts["checked"]

    def round(self, num_answers: int) -> None:
        """So many answers, then rest."""
        end = self.found.counts["answers"] + num_answers
        while self.found.counts["answers"] < end:
            self._send()
            self._step()
            if self._rng.random() < 0.005:
                self._reset(running=True)
        while self._live:
            self._step()
        self.check_rest()

    def check_rest(self) -> None:
        """Raises AssertionError where something is left. Some rounds end with an emptied cache."""
        self._llm.step()
        pool = self._scheduler.kv_cache_manager.block_pool
        assert not self._scheduler.requests, f"left: {list(self._scheduler.requests)}"
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1, "blocks are lost"
        assert all(block.ref_cnt == 0 for block in pool.blocks if not block.is_null)
        self._scheduler.connector.check_integrity()
        if self._rng.random() < 0.3:
            self._reset(running=False)

    def finish(self) -> Found:
        """What was found, with vLLM's own count of preemptions."""
        metrics = {metric.name: metric for metric in self._llm.get_metrics()}
        self.found.counts["preemptions"] = int(getattr(metrics["vllm:num_preemptions"], "value", 0))
        return self.found

    def _reset(self, *, running: bool) -> None:
        """Empty the prefix cache. Requests that run are preempted, or there are none."""
        assert self._llm.reset_prefix_cache(reset_running_requests=running)
        self.found.counts["resets"] += 1

    def _send(self) -> None:
        busy = {live.talk.name for live in self._live.values() if live.talk is not None}
        idle = [talk for talk in self._talks if talk.name not in busy]
        if not idle or len(self._live) >= 8:
            return
        talk = self._rng.choice(idle)
        if self._rng.random() < 0.2:
            self._add(talk.stranger(), None)
        else:
            self._add(talk.ask(), talk)

    def _add(self, ask: Ask, talk: Talk | None) -> None:
        self._num_sent += 1
        request_id = f"r{self._num_sent}"
        prompt = TokensPrompt(prompt_token_ids=list(ask.prompt))
        if ask.salt is not None:
            prompt["cache_salt"] = ask.salt
        extra = None if ask.acm is None else {"kv_transfer_params": {"acm": ask.acm}}
        params = SamplingParams(temperature=0, max_tokens=ask.max_tokens, ignore_eos=True, logprobs=5, extra_args=extra)
        self._llm.add_request(request_id, prompt, params, priority=ask.priority)
        self._live[request_id] = _Live(ask, talk)

    def _step(self) -> None:
        for output in self._llm.step():
            if output.finished and output.request_id in self._live:
                self._take(self._live.pop(output.request_id), output)
        for request_id, live in list(self._live.items()):
            live.num_steps += 1
            if live.ask.abort_after_steps is not None and live.num_steps > live.ask.abort_after_steps:
                self._llm.abort_request([request_id])
                del self._live[request_id]
                self.found.counts["aborts"] += 1

    def _take(self, live: _Live, output: Any) -> None:
        completion, counts, ask = output.outputs[0], self.found.counts, live.ask
        answer = list(completion.token_ids)
        counts["answers"] += 1
        receipt = (output.kv_transfer_params or {}).get("acm", {}).get("receipt", {})
        for name in ("kept_tokens", "moved_tokens", "computed_tokens"):
            counts[name] += receipt.get(name, 0)
        if live.talk is not None:
            live.talk.take(answer)
            assert receipt, f"a session's answer has no receipt: {ask.session}"
        if ask.is_exact or self._checks_moved:
            listed = [{token: entry.logprob for token, entry in step.items()} for step in completion.logprobs]
            difference = self._reference.difference(ask.prompt, answer, listed)
            counts["checked"] += 1
            self.found.largest_difference = max(self.found.largest_difference, difference)
            if len(answer) != ask.max_tokens or difference > MAX_DIFFERENCE:
                self.found.mismatches.append(f"{ask.session}, {ask.fidelity}: {difference:.4f}, {receipt}")
