"""Routes count texts for the tenant of their request: what another key or salt has sent is tokenized anew."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from starlette.testclient import TestClient

from acmserve.context.transcript.tokenizer import count_tokens
from acmserve.server.app.paths import CHAT_PATH, MESSAGES_PATH
from acmserve.server.http.tenants import TENANT, Tenants
from acmserve.server.messages.context_editor import ContextEditor
from acmserve.server.models import template_probe
from acmserve.server.models.template_probe import TemplateFrame, TemplateProbe
from acmserve.server.models.tokenizer import ServedTokenizer
from tests.server.http.test_text_memory import WordsAsked
from tests.support.routes.vendor_app import Handler, vendor_client
from tests.support.server.acm_app import FirstSentence
from tests.support.server.bad_context_management import TOOLS
from tests.support.server.block_story import Blocks

TEXT = "the numbers of the quarter are 17 and 4 and nobody may know them"


class NotingHandler(Handler):
    """`tenants` has whose work each answer of the model was."""

    def __init__(self) -> None:
        super().__init__()
        self.tenants: list[str] = []

    async def create_chat_completion(self, request: Any, raw_request: Any) -> Any:
        self.tenants.append(TENANT.get())
        return await super().create_chat_completion(request, raw_request)


class KeyedRoutes:
    """The routes of a server with API keys. `words` tokenizes for requests that no session keeps."""

    def __init__(self) -> None:
        self.words, self.handler = WordsAsked(), NotingHandler()
        served = ServedTokenizer(self.words)
        editor = ContextEditor(TemplateProbe(lambda text: count_tokens(served, text)), FirstSentence())
        self.client: TestClient = vendor_client(self.handler, editor)
        tenants = cast(Any, self.client.app).state.acm_tenants = Tenants(has_api_keys=True)
        self.tenants = tenants
        server = cast(Any, self.client.app).state.acm_server
        server.sessions._has_api_keys, server.sessions._tenants = True, tenants

    def post(self, path: str, key: str, header: str = "", **fields: Any) -> int:
        """The texts that were tokenized for a request."""
        num_before = len(self.words.seen)
        headers = {"Authorization": f"Bearer {key}"} | ({"X-Cache-Salt": header} if header else {})
        self.client.post(path, json={"model": "m", "max_tokens": 5, **fields}, headers=headers)
        return len(self.words.seen) - num_before


@pytest.mark.parametrize("path", [MESSAGES_PATH, CHAT_PATH])
def test_a_route_counts_what_another_key_has_sent_anew(path: str) -> None:
    routes = KeyedRoutes()
    edits = {"edits": [{"type": TOOLS, "trigger": {"type": "tool_uses", "value": 3}}]}
    blocks = Blocks().user(TEXT).messages
    asked: dict[str, Any] = {"messages": blocks, "context_management": edits}
    first, again, others = (routes.post(path, key, **asked) for key in "aab")
    assert first == others > 0
    assert again == 0
    assert routes.post(path, "a", "salt", **asked) == first
    assert routes.post(path, "a", "salt", **asked) == 0


@pytest.mark.parametrize("session", [{}, {"session_id": "s"}], ids=["alone", "session"])
def test_work_for_a_request_is_its_tenants(session: dict[str, str]) -> None:
    """A salt of the body counts, which the middleware has not read."""
    routes = KeyedRoutes()
    chat = {"messages": [{"role": "user", "content": TEXT}], **session}
    for key, header, salt in (("a", "", {}), ("b", "", {}), ("a", "x", {}), ("a", "", {"cache_salt": "y"})):
        routes.post(CHAT_PATH, key, header, **chat, **salt)
    headers = [{"authorization": f"Bearer {key}"} for key in "aba"]
    wanted = [routes.tenants.of(each) for each in headers]
    wanted[2:] = [routes.tenants.of(headers[0], salt) for salt in "xy"]
    assert routes.handler.tenants == wanted
    assert len(set(wanted)) == 4


def test_a_frame_is_counted_for_each_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    probe, asked = TemplateProbe(lambda text: len(text.split())), list[str]()

    async def count_frame(frame: TemplateFrame, _: object) -> int:
        asked.append(TENANT.get())
        return 100

    async def weigh(tenant: str) -> int:
        TENANT.set(tenant)
        return (await probe.weigh(TemplateFrame("m", TEXT), cast(Any, None))).base_tokens

    monkeypatch.setattr(template_probe, "_count_frame", count_frame)
    assert len({asyncio.run(weigh(tenant)) for tenant in ("a", "a", "b", "a", "b", "")}) == 1
    assert asked == ["a", "b", ""]
