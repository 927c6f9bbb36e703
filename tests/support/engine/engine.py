"""Running the real engine in tests: start, ask, stop."""

from __future__ import annotations

import gc
import multiprocessing
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from vllm import LLM, SamplingParams
from vllm.distributed import parallel_state
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest

from acmserve.engine.config import engine_config
from tests.support.server.running_server import ONE_PROCESS

TINY_SETTINGS: dict[str, Any] = {
    "max_model_len": 4096,
    "skip_tokenizer_init": True,
    "kv_cache_memory_bytes": 64 * 2**20,
}


@dataclass(frozen=True)
class Answer:
    """What came back: output tokens, the first token's logprobs by token id, and the receipt (None without session)."""

    token_ids: tuple[int, ...]
    logprobs: dict[int, float]
    receipt: dict[str, Any] | None

    def distance(self, other: Answer) -> float:
        """Largest difference of logprob over the tokens that both list, infinite when the lists differ at all."""
        if self.logprobs.keys() != other.logprobs.keys():
            common = self.logprobs.keys() & other.logprobs.keys()
            edge = min(*self.logprobs.values(), *other.logprobs.values())
            strangers = [
                value
                for answer in (self, other)
                for token, value in answer.logprobs.items()
                if token not in common and value > edge + 1e-2
            ]
            if strangers:
                return float("inf")
        return max(abs(self.logprobs[t] - other.logprobs[t]) for t in self.logprobs.keys() & other.logprobs.keys())


class Engine:
    """A vLLM engine. `ask` takes token ids and returns an `Answer`."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm

    def ask(
        self,
        tokens: Sequence[int],
        session: str | None = None,
        fidelity: str | None = None,
        *,
        salt: str | None = None,
        max_tokens: int = 1,
        num_logprobs: int = 20,
        forget: bool = False,
        repair: dict[str, Any] | None = None,
        adapter: LoRARequest | None = None,
        foldable: Sequence[Sequence[int]] = (),
    ) -> Answer:
        (answer,) = self.ask_all(
            [(tokens, session, fidelity)],
            salt=salt,
            max_tokens=max_tokens,
            num_logprobs=num_logprobs,
            forget=forget,
            repair=repair,
            adapter=adapter,
            foldable=foldable,
        )
        return answer

    def ask_all(
        self,
        requests: Sequence[tuple[Sequence[int], str | None, str | None]],
        *,
        salt: str | None = None,
        max_tokens: int = 1,
        num_logprobs: int = 20,
        forget: bool = False,
        repair: dict[str, Any] | None = None,
        adapter: LoRARequest | None = None,
        foldable: Sequence[Sequence[int]] = (),
    ) -> list[Answer]:
        """Several requests at once: (tokens, session, fidelity) each."""
        prompts = []
        params = []
        for tokens, session, fidelity in requests:
            prompt = TokensPrompt(prompt_token_ids=list(tokens))
            if salt is not None:
                prompt["cache_salt"] = salt
            prompts.append(prompt)
            acm = {"session_id": session} | ({"fidelity": fidelity} if fidelity else {})
            acm |= {"foldable": [list(piece) for piece in foldable]} if foldable else {}
            acm |= ({"forget": True} if forget else {}) | ({"repair": repair} if repair is not None else {})
            extra = {"kv_transfer_params": {"acm": acm}} if session is not None else None
            params.append(
                SamplingParams(
                    temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=num_logprobs, extra_args=extra
                )
            )
        outputs = self.llm.generate(prompts, params, use_tqdm=False, lora_request=adapter)
        return [read_answer(output) for output in outputs]


def read_answer(output: Any) -> Answer:
    """What one of vLLM's outputs says."""
    completion = output.outputs[0]
    logprobs = {token: entry.logprob for token, entry in completion.logprobs[0].items()}
    acm = (output.kv_transfer_params or {}).get("acm")
    return Answer(tuple(completion.token_ids), logprobs, acm["receipt"] if acm else None)


@contextmanager
def start_engine(
    model: Path, *, plugin: dict[str, Any] | None, own_process: bool, spawned: bool = False, **settings: Any
) -> Iterator[Engine]:
    """Start an engine. `plugin` are the settings of `engine_config`, and None starts stock vLLM.

    Without `own_process` the engine core lives in this process, where a test can look at it and replace its parts.
    Only one such engine may be alive at a time (vLLM keeps its KV connector in a global). The worker lives where the
    core does: a process for it alone would import vLLM once more. The server with the bundled model has such a one.

    Processes of an engine with the plugin are forks of this one. With `spawned` they are started as vLLM does on a CPU.
    """
    defaults = {"dtype": "float32", "enforce_eager": True, "max_logprobs": 20, "seed": 0}
    defaults |= {"distributed_executor_backend": ONE_PROCESS} if own_process else {}
    extra = engine_config(**plugin) if plugin is not None else {}
    has_others = own_process or "distributed_executor_backend" in settings
    is_forked = plugin is not None and not spawned and has_others
    with nullcontext() if own_process else old_heap_frozen():
        with forked_processes() if is_forked else nullcontext(), pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1" if own_process else "0")
            if plugin is None:
                # A fresh interpreter that loads no plugin: a forked one would inherit the seams of this process.
                patch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
                patch.setenv("VLLM_PLUGINS", "")
            llm = LLM(str(model), **{**defaults, **settings}, **extra)
        try:
            yield Engine(llm)
        finally:
            llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()
            if not own_process:
                _forget_rope_cache()


@contextmanager
def forked_processes() -> Iterator[None]:
    """Meanwhile vLLM forks engine cores and workers. A spawned one imports vLLM once more: eight seconds of CPU.

    Groups of processes that an earlier engine made in this one would be those of its forks, too. Warnings are errors in
    this process alone.
    """
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()
    fork = multiprocessing.get_context("fork")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        patch.setattr(multiprocessing, "get_context", lambda method=None: fork)
        yield


@contextmanager
def old_heap_frozen() -> Iterator[None]:
    """Meanwhile garbage is looked for in what is new. What lives now, a million objects of the suite, lives on.

    vLLM collects garbage several times while it starts and ends. It also freezes its own objects, which nobody would
    collect then, and thaws everything at its end.
    """
    gc.freeze()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: None)
        patch.setattr(gc, "unfreeze", lambda: None)
        yield


def scheduler_of(engine: Engine) -> Any:
    """The scheduler of an engine that lives in this process."""
    core: Any = engine.llm.llm_engine.engine_core
    return core.engine_core.scheduler


@contextmanager
def counted_steps(engine: Engine) -> Iterator[list[int]]:
    """Meanwhile the tokens that each step of an engine in this process computes are written down."""
    scheduler = scheduler_of(engine)
    schedule, sizes = scheduler.schedule, []

    def counted(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        if output.total_num_scheduled_tokens:
            sizes.append(output.total_num_scheduled_tokens)
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "schedule", counted)
        yield sizes


def _forget_rope_cache() -> None:
    """vLLM caches rotary modules by their arguments for the life of the process."""
    from vllm.model_executor.layers import rotary_embedding

    rotary_embedding._ROPE_DICT.clear()
