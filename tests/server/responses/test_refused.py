"""A request that can have no response is refused before anybody answers it, so its session records nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.requests import Request
from vllm.exceptions import VLLMValidationError

from acmserve.plan.request import SessionParams
from acmserve.server.chat.options import SessionCall
from acmserve.server.responses.route import answer_responses
from acmserve.server.sessions.identifier import Identified
from acmserve.server.vllm.responses import ResponsesRequest
from tests.support.routes.stand_in_model import Model, said
from tests.support.server.acm_app import make_server

REFUSED = [
    ({"text": {"format": {"type": "text"}}, "structured_outputs": {"regex": "a+"}}, VLLMValidationError),
    ({"truncation": None}, ValidationError),
    ({"background": None}, ValidationError),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("fields", "error"), REFUSED, ids=str)
def test_what_no_response_can_say_is_refused_first(fields: dict[str, Any], error: Any, stream: bool) -> None:
    """Its answer was made and recorded, and the client was told that it was refused."""
    server, model = make_server(), Model(said("Done."))
    config = SimpleNamespace(max_model_len=4096)
    serving = SimpleNamespace(
        model_config=config, default_sampling_params={}, use_harmony=False, tool_server=None, enable_auto_tools=True
    )
    app = SimpleNamespace(state=SimpleNamespace(openai_serving_responses=serving))
    raw_request = Request({"type": "http", "method": "POST", "path": "/v1/responses", "headers": [], "app": app})
    body = {"model": "m", "input": "Hello.", "stream": stream, **fields}
    found = Identified("", "s", SessionParams("s"), "session_id", is_explicit=True, engine_id="s")
    request = ResponsesRequest.model_validate(body)
    call = SessionCall(request, raw_request, body, found, leave=lambda reason: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(error):
        asyncio.run(answer_responses(server, call, model))
    assert model.requests == []
    assert server.store.open("", "s").state.entries == ()
