"""One vLLM engine in this process, with or without acmserve, asked and timed.

Prompts go in as token ids and every request carries a cache salt. So what is compared is compared on the same tokens,
and tokenization is in no number. Sequences with different salts share no KV. So a "stock" sequence beside a session in
the same engine behaves like one in an engine of its own.

Time to first token is vLLM's own `first_token_latency`. It runs from the arrival of the request to the first sampled
token back in the front end. Session bookkeeping, matching and the copy of KV are included. This file knows nothing
about conversations, edits or what a number means.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from acmserve.bench.harness.run_log import RUN
from acmserve.errors import AcmError

_LOG_TAIL_CHARS = 3000


@dataclass(frozen=True, slots=True)
class EngineReply:
    """Answer to one request. `receipt` is None for requests without a session.

    `cached_tokens` is vLLM's own count of prompt tokens that it found in its prefix cache. `logprobs` are, for each
    token of the answer, the log-probabilities of the tokens that were asked for.
    """

    first_token_s: float
    cached_tokens: int
    token_ids: tuple[int, ...]
    text: str
    receipt: dict[str, Any] | None
    logprobs: tuple[Mapping[int, float], ...] = ()

    @property
    def first_logprobs(self) -> Mapping[int, float]:
        """Those of the first token. Empty where none were asked for."""
        return self.logprobs[0] if self.logprobs else {}


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: `salt` separates its KV from others. `session_id` None makes it a plain vLLM request.

    `acm` are further parameters of the session, `extra_args` further ones of vLLM's sampling. With `ignore_eos` the
    answer has all its tokens. Of `candidates`, at most 128 tokens, the log-probabilities are told, and those of the
    `num_logprobs` likeliest tokens.
    """

    token_ids: tuple[int, ...]
    salt: str
    session_id: str | None = None
    fidelity: str = "exact"
    max_tokens: int = 1
    acm: Mapping[str, Any] = field(default_factory=dict)
    extra_args: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = False
    candidates: tuple[int, ...] = ()
    num_logprobs: int = 0


@dataclass(frozen=True, slots=True)
class PlayedSessions:
    """Answers of sessions that were asked side by side, in the order of each session's requests.

    `turn_seconds` go from a request to the end of its answer, `seconds` to the end of the last one of all.
    """

    replies: tuple[tuple[EngineReply, ...], ...]
    turn_seconds: tuple[tuple[float, ...], ...]
    seconds: float


class LocalEngine:
    """vLLM in this process. float32 on a CPU, the model's own dtype elsewhere. `settings` are vLLM's.

    `imports` names modules that have to be there before vLLM loads the model: a loader of weights, for one.
    """

    def __init__(
        self,
        model: Path,
        with_acmserve: bool,
        kv_gib: int = 2,
        max_model_len: int = 8192,
        imports: Sequence[str] = (),
        **settings: Any,
    ) -> None:
        prepare_environment(with_acmserve, kv_gib)
        with _output_in_log("the engine did not start"):
            for name in imports:
                importlib.import_module(name)
            self._llm = _start(model, with_acmserve, max_model_len, settings)

    def ask(self, ask: Ask) -> EngineReply:
        """Greedy answer of at most `ask.max_tokens` tokens."""
        (reply,) = self.ask_all([ask])
        return reply

    def ask_all(self, asks: Sequence[Ask]) -> list[EngineReply]:
        """Greedy answers to requests that arrive together, in their order."""
        outputs = self._llm.generate([_prompt(ask) for ask in asks], [_sampling(ask) for ask in asks], use_tqdm=False)
        replies = [_reply(output) for output in outputs]
        for ask, reply in zip(asks, replies, strict=True):
            RUN.answered(reply.first_token_s, reply.receipt, fidelity=ask.fidelity)
        return replies

    def play(self, sessions: Sequence[Sequence[Ask]]) -> PlayedSessions:
        """All sessions side by side: each asks again as soon as it has its answer."""
        engine = self._llm.llm_engine
        replies: list[list[EngineReply]] = [[] for _ in sessions]
        turn_seconds: list[list[float]] = [[] for _ in sessions]
        asked: dict[str, tuple[int, float]] = {}

        def ask_next(number: int) -> None:
            place = len(replies[number])
            if place < len(sessions[number]):
                name = f"{number} {place}"
                asked[name] = (number, time.monotonic())
                ask = sessions[number][place]
                engine.add_request(name, _prompt(ask), _sampling(ask, is_whole=True))

        begun = time.monotonic()
        for number in range(len(sessions)):
            ask_next(number)
        while asked:
            for output in engine.step():
                if output.finished:
                    number, since = asked.pop(output.request_id)
                    turn_seconds[number].append(time.monotonic() - since)
                    replies[number].append(_reply(output))
                    ask_next(number)
        seconds = time.monotonic() - begun
        return PlayedSessions(tuple(map(tuple, replies)), tuple(map(tuple, turn_seconds)), seconds)

    @property
    def llm(self) -> Any:
        """vLLM's own object, for what looks inside of the engine."""
        return self._llm

    @property
    def tokenizer(self) -> Any:
        """The model's Hugging Face tokenizer."""
        return self._llm.get_tokenizer()

    def close(self) -> None:
        """Give the engine's memory back."""
        with _output_in_log("the engine did not stop"):
            self._llm.llm_engine.engine_core.shutdown()


def _prompt(ask: Ask) -> Any:
    from vllm import TokensPrompt

    return TokensPrompt(prompt_token_ids=list(ask.token_ids), cache_salt=ask.salt)


def _sampling(ask: Ask, *, is_whole: bool = False) -> Any:
    """`is_whole`: the answer comes at its end and in one piece, as `LLM.generate` has it by itself."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(temperature=0.0, max_tokens=ask.max_tokens, ignore_eos=ask.ignore_eos)
    params.logprob_token_ids = list(ask.candidates) or None
    params.logprobs = ask.num_logprobs or params.logprobs
    extra = dict(ask.extra_args)
    if ask.session_id is not None:
        acm = {"session_id": ask.session_id, "fidelity": ask.fidelity, **ask.acm}
        extra["kv_transfer_params"] = {"acm": acm}
    params.extra_args = extra or None
    if is_whole:
        params.output_kind = RequestOutputKind.FINAL_ONLY
    return params


def _reply(output: Any) -> EngineReply:
    answer = output.outputs[0]
    transfer = output.kv_transfer_params or {}
    return EngineReply(
        first_token_s=output.metrics.first_token_latency,
        cached_tokens=output.num_cached_tokens or 0,
        token_ids=tuple(answer.token_ids),
        text=answer.text,
        receipt=transfer["acm"]["receipt"] if "acm" in transfer else None,
        logprobs=tuple({token: told.logprob for token, told in one.items()} for one in answer.logprobs or ()),
    )


def prepare_environment(with_acmserve: bool, kv_gib: int) -> None:
    """Set what vLLM reads from the environment. A call must come before vLLM is imported. What the user set stays.

    In-process engine core: a single process starts in half the time and computes on every core. OpenMP threads that
    wait sleep rather than spin: spinning ones slow down whatever else runs, a second engine above all.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(kv_gib))
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if not with_acmserve:
        os.environ["VLLM_PLUGINS"] = ""


def _start(model: Path, with_acmserve: bool, max_model_len: int, more: Mapping[str, Any]) -> Any:
    from vllm import LLM
    from vllm.platforms import current_platform

    settings: dict[str, Any] = {"max_model_len": max_model_len, "disable_log_stats": False, "seed": 0}
    settings["distributed_executor_backend"] = "uni"
    if current_platform.is_cpu():
        settings |= {"dtype": "float32", "enforce_eager": True}
    if with_acmserve:
        from acmserve.engine.config import engine_config

        settings |= engine_config()
    return LLM(model=str(model), **(settings | dict(more)))


@contextmanager
def _output_in_log(failure: str) -> Iterator[None]:
    """Send everything that libraries print meanwhile (C++ included) to a log. Show its end when something fails."""
    with tempfile.TemporaryFile() as log:
        sys.stdout.flush()
        sys.stderr.flush()
        saved = os.dup(1), os.dup(2)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield
        except Exception as error:
            log.seek(0)
            tail = log.read().decode(errors="replace")[-_LOG_TAIL_CHARS:]
            raise AcmError(f"{failure}: {error}\n{tail}") from error
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, original in enumerate(saved, start=1):
                os.dup2(original, descriptor)
                os.close(original)


def check_receipt(ask: Ask, receipt: Mapping[str, Any] | None) -> list[str]:
    """Why a receipt does not fit its request: it has to count every token, and `exact` moves nothing."""
    if receipt is None:
        return ["no receipt came back"]
    counts = [receipt[name] for name in ("kept_tokens", "moved_tokens", "computed_tokens")]
    failures = []
    if sum(counts) != len(ask.token_ids):
        failures.append(f"kept, moved, computed {counts} do not sum to {len(ask.token_ids)}")
    if ask.fidelity == "exact" and counts[1]:
        failures.append(f"{counts[1]} tokens were moved under exact")
    return failures
