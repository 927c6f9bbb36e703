"""How many files of server and context a chat turn enters, from the route's function to vLLM's and back.

One fragment is folded, and the request asks for nothing else: no budget, map, branch, precompute or tools. Such a turn
is what a reader follows first, so what it does not use must not be on the way. A history that only grows, in a session
that a client of ours named, asks neither whose thread it is nor what was respelled. What each file is entered for:

    in_session, turn, recording    the way to vLLM's function and back, and what is left behind
    exchange, delivery             what goes to the engine, and the receipt on its way back
    strict_json                    the body once more, to be the transcript's own, and to be JSON that can be stored
    identifier, session_params     every place where an id may stand, each of ours checked
    families                       no other thread, and the tools as before
    sessions                       tenant, lock, and what the engine is told
    turn_recorder                  the turn that will have ended
    history, normal_form           messages appended, each with its digest
    observations                   whether the new message of the user is a result
    render, message                the fold that was asked for
    session_store, codecs/rows     the new rows, and what the session weighs with them

The issue asks for 10. `benchmarks/LOG.md` says why it is 18, and what else was tried.

With the engine more files come behind vLLM's function. First come the memory of served prompts, the pieces that may be
folded, the measured rates, and the receipt's header. Then come the record of the turn (ended_request, turn, history,
totals, its rows), its time for operators, and what it saved (turn_counters, savings).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest, ChatCompletionResponse
from vllm.sampling_params import SamplingParams

from acmserve.server.app.paths import CHAT_PATH
from acmserve.server.exchange.exchange import tap_generate
from tests.support.routes.vendor_app import Handler, make_editor, vendor_client
from tests.support.server.acm_app import FirstSentence
from tests.support.walk import Walk, count_walk

MAX_FILES = 18
MAX_FILES_WITH_ENGINE = MAX_FILES + 12
UNUSED = (
    *(f"server/{part}" for part in ("budget/budgets", "budget/enforcement", "maps/", "precompute/", "chat/branches")),
    *(
        f"server/identity/{part}"
        for part in ("client_id", "content", "fingerprint", "threads", "thread_hints", "units")
    ),
    *("server/chat/options", "server/options/field_names", "server/sessions/events"),
    *(f"context/{part}" for part in ("session/carrying/", "alignment/match", "session/branches/", "storage/sqlite")),
)
HISTORY = [
    {"role": "system", "content": "You help."},
    {"role": "user", "content": "alpha beta. " * 40},
    {"role": "assistant", "content": "Noted."},
    {"role": "user", "content": "And now?"},
]
MESSAGE = {"role": "assistant", "content": "Noted."}
CHOICES = [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]
NONE = dict.fromkeys(("kept_tokens", "moved_tokens", "precomputed_tokens", "repaired_tokens"), 0)
COUNTS = {"prompt_tokens": 3, "computed_tokens": 3} | NONE


class Chats(Handler):
    """The chat handler of vLLM. With `engine` it asks the engine, as vLLM's own does."""

    engine = False

    async def create_chat_completion(self, request: Any, raw_request: Any) -> ChatCompletionResponse:
        self.seen.append(list(request.messages))
        if self.engine:
            prompt = {"type": "token", "prompt_token_ids": [1, 2, 3]}
            async for _ in tap_generate(_generate, 100)(prompt, SamplingParams(), "r"):
                pass
        answer = {"id": "c", "created": 1, "model": "m", "choices": CHOICES, "usage": {}}
        return ChatCompletionResponse.model_validate(answer)


async def _generate(*_: Any, **__: Any) -> AsyncGenerator[Any, None]:
    completion = SimpleNamespace(index=0, token_ids=[], text="")
    acm = {"session_id": "s", "receipt": {"fidelity": "exact", "moves": [], "fallback_reason": None} | COUNTS}
    counts = {"num_cached_tokens": 0, "num_cache_creation_tokens": 0}
    yield SimpleNamespace(kv_transfer_params={"acm": acm}, finished=True, outputs=[completion], **counts)


def answer(client: TestClient, body: dict[str, Any]) -> Any:
    """Call the route's function, as FastAPI does, in this thread."""
    app: Any = client.app
    route = next(route for route in app.routes if getattr(route, "path", "") == CHAT_PATH)
    scope = {"type": "http", "method": "POST", "path": CHAT_PATH, "headers": [], "query_string": b"", "app": app}
    messages = [{"type": "http.request", "body": json.dumps(body).encode()}]

    async def receive() -> Any:
        return messages.pop() if messages else await asyncio.Event().wait()

    async def call() -> Any:
        raw_request = Request(scope, receive)
        request = ChatCompletionRequest.model_validate(await raw_request.json())
        answering: Awaitable[Any] = route.endpoint(request=request, raw_request=raw_request)
        return await answering

    return asyncio.run(call())


def walk(*, engine: bool) -> tuple[Walk, Chats]:
    handler = Chats()
    client = vendor_client(handler, make_editor(FirstSentence()))
    body = {"model": "m", "session_id": "s", "messages": HISTORY[:2]}
    assert client.post(CHAT_PATH, json=body).status_code == 200
    fold = {"edits": [{"op": "fold", "messages": {"start": 1, "end": 2}}]}
    assert client.post("/v1/acm/sessions/s/edits", json=fold).status_code == 200
    handler.engine = engine
    answers: list[Any] = []
    walked = count_walk(lambda: answers.append(answer(client, body | {"messages": HISTORY})))
    assert answers[0].status_code == 200
    assert ("acm" in json.loads(answers[0].body)) == engine
    return walked, handler


@pytest.mark.parametrize(("engine", "most"), [(False, MAX_FILES), (True, MAX_FILES_WITH_ENGINE)])
def test_a_chat_turn_after_a_fold_enters_few_files(engine: bool, most: int) -> None:
    walked, handler = walk(engine=engine)
    entered = sorted(file for file in walked.files if file.startswith(("server/", "context/")))
    assert "[folded " in handler.seen[-1][1]["content"]
    assert len(handler.seen[-1]) == len(HISTORY)
    assert len(entered) <= most, entered


def test_a_plain_turn_enters_no_part_that_it_does_not_use() -> None:
    walked, _ = walk(engine=True)
    assert not [file for file in walked.files if file.startswith(UNUSED)]


@pytest.mark.parametrize(("field", "meant"), [("sesion_id", "session_id"), ("fidelity", "acm.fidelity")])
def test_what_a_plain_turn_does_not_enter_still_refuses_a_misspelt_field(field: str, meant: str) -> None:
    body = {"model": "m", "session_id": "s", "messages": HISTORY[:2]}
    client = vendor_client(Chats(), make_editor(FirstSentence()))
    assert client.post(CHAT_PATH, json=body | {"a_field_of_nobody": 1}).status_code == 200
    refused = client.post(CHAT_PATH, json=body | {field: "x"})
    assert refused.status_code == 400
    assert f"Did you mean '{meant}'?" in refused.json()["error"]["message"]
