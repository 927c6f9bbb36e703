"""Chat requests without session through a server's ASGI app, for Valgrind to count.

    scope, body --> the server's ASGI app --> vLLM's AsyncLLM --> prepared tokens
                    routes, middleware         renders, detokenizes, counts

`stock` is the app of `vllm serve` without any plugin, `acmserve` that of `acmserve serve` with its own defaults. Each
parses its own command line. Prints what it answered as a line of JSON.

Decision: no socket and no engine process. Both make a count hang on the clock. What they take is missing on both
sides, so the shares that are told are rather too high. What runs by the clock, a line of statistics every ten seconds,
is not started either.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
from argparse import Namespace
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from acmserve.bench.micro.instructions import counting
from acmserve.bench.overhead.server_args import MODEL_NAME, parse_server_args

WHOLE, STREAMED, BETWEEN = "whole", "streamed", "between"
KINDS = (WHOLE, STREAMED)
ANSWER_TOKENS = 100
NUM_WARMUP, NUM_COUNTED = 5, 7
_PATH = "/v1/chat/completions"
_NUM_WORDS = 160


class PreparedEngine:
    """Stands where AsyncLLM talks to the process of its engine. Every request gets the same tokens, one at a time."""

    def __init__(self, token_ids: Sequence[int]) -> None:
        from vllm.v1.metrics.stats import SchedulerStats

        self.engine_ranks_managed = [0]
        self.resources = Namespace(engine_dead=False)
        self._token_ids, self._stats = token_ids, SchedulerStats
        self._outputs: asyncio.Queue[Any] = asyncio.Queue()

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        """Those of a model that writes text."""
        return ("generate",)

    async def add_request_async(self, request: Any) -> None:
        """A step of the engine for each token of the answer."""
        from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
        from vllm.v1.metrics.stats import PrefillStats

        last = len(self._token_ids) - 1
        for place, token_id in enumerate(self._token_ids):
            prefill = PrefillStats(num_prompt_tokens=len(request.prompt_token_ids)) if place == 0 else None
            output = EngineCoreOutput(
                request_id=request.request_id,
                new_token_ids=[token_id],
                finish_reason=FinishReason.LENGTH if place == last else None,
                prefill_stats=prefill,
            )
            self._outputs.put_nowait(EngineCoreOutputs(outputs=[output], scheduler_stats=self._stats()))

    async def get_output_async(self) -> Any:
        """The next step's. A socket would let others run meanwhile, too."""
        await asyncio.sleep(0)
        return await self._outputs.get()

    async def collective_rpc_async(self, *_args: Any, **_kwargs: Any) -> list[None]:
        """No worker refuses anything."""
        return [None]

    async def abort_requests_async(self, request_ids: Sequence[str]) -> None:
        """No request is aborted."""

    def shutdown(self, timeout: float | None = None) -> None:
        """Nothing runs."""


def main(column: str) -> None:
    """Warm up, then answer the counted requests of each kind, one after the other."""
    import uvloop

    uvloop.run(_answer_all(parse_server_args(column, "--disable-uvicorn-access-log")))


async def _answer_all(args: Namespace) -> None:
    app = await _start(args)
    numbers = itertools.count()
    answers = []
    for kind in KINDS:
        answers += [await _answer(app, _body(next(numbers), kind)) for _ in range(NUM_WARMUP)]
    gc.collect()
    gc.disable()
    with counting() as end_part:
        for kind in KINDS:
            for _ in range(NUM_COUNTED):
                body = _body(next(numbers), kind)
                end_part(BETWEEN)
                answers.append(await _answer(app, body))
                end_part(kind)
    print(json.dumps(answers))


async def _start(args: Namespace) -> Any:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.v1.engine.async_llm import AsyncLLM
    from vllm.v1.engine.core_client import EngineCoreClient

    config = AsyncEngineArgs.from_cli_args(args).create_engine_config()
    prepared = PreparedEngine([*range(1000, 1000 + ANSWER_TOKENS)])
    with patch.object(EngineCoreClient, "make_async_mp_client", return_value=prepared):
        engine = AsyncLLM.from_vllm_config(config, disable_log_stats=args.disable_log_stats)
    app = build_app(args, ("generate",), engine.model_config)
    await init_app_state(engine, app.state, args, ("generate",))
    return app


async def _answer(app: Any, body: bytes) -> Any:
    """What the app sends for one request: the text of the answer and its usage. Raises where it is refused."""
    arrived = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []
    never = asyncio.Event()

    async def receive() -> Any:
        if not arrived:
            await never.wait()
        return arrived.pop()

    async def send(message: Any) -> None:
        sent.append(message)

    await app(_scope(len(body)), receive, send)
    content = b"".join(message.get("body", b"") for message in sent)
    assert sent[0]["status"] == 200, content
    return read_answer(content)


def read_answer(content: bytes) -> list[Any]:
    """Text and usage of an answer, whole or streamed. Without what differs from run to run, the ids and times."""
    if not content.startswith(b"data: "):
        answer = json.loads(content)
        return [answer["choices"][0]["message"]["content"], answer["usage"]]
    events = [line.removeprefix("data: ") for line in content.decode().splitlines() if line.startswith("data: {")]
    chunks = [json.loads(event) for event in events]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    return [text, chunks[-1]["usage"]]


def _scope(num_bytes: int) -> dict[str, Any]:
    """What uvicorn hands to an app, as a client of OpenAI sends it."""
    headers = {
        "host": "127.0.0.1:8000",
        "accept": "application/json",
        "content-type": "application/json",
        "user-agent": "OpenAI/Python 2.0.0",
        "authorization": "Bearer unused",
        "content-length": str(num_bytes),
    }
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": _PATH,
        "raw_path": _PATH.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "server": ("127.0.0.1", 8000),
        "client": ("127.0.0.1", 50000),
        "state": {},
    }


def _body(number: int, kind: str) -> bytes:
    """Every prompt differs, as in life. All have the same number of characters."""
    words = " ".join(f"{word:05d}" for word in range(number * 1000, number * 1000 + _NUM_WORDS))
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "system", "content": "Be short."}, {"role": "user", "content": words}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
    }
    more = {"stream": True, "stream_options": {"include_usage": True}} if kind == STREAMED else {}
    return json.dumps(body | more).encode()
