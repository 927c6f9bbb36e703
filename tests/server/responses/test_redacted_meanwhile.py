"""A text is redacted while a summary of it is written that the client will hold. It quotes less than is cut out.

vLLM's own routes without an engine, ours in front. An object stands for the model that summarizes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionResponse
from vllm.entrypoints.serve.engine.protocol import UsageInfo

from acmserve.context.eviction.compact import Summary
from acmserve.context.tools.batch import Edit, EditKind
from acmserve.context.transcript.message import Message
from acmserve.errors import Unavailable
from acmserve.server.app.paths import COMPACT_PATH, MESSAGES_PATH, RESPONSES_PATH
from acmserve.server.budget.conversation_summary import LivePrompt
from acmserve.server.context.server import ContextServer
from acmserve.server.exchange.exchange import CURRENT
from acmserve.server.options.compaction_content import read_content
from tests.support.routes.held_session import until_they_wait
from tests.support.routes.vendor_app import Handler, make_editor, vendor_client
from tests.support.server.acm_app import SESSIONS, FirstSentence, lines
from tests.support.server.bad_context_management import COMPACT
from tests.support.server.block_story import Blocks

CODE = "4711-0815"
PAGE = f"{lines(20)}The code of the safe is {CODE}.\n{lines(20)}"
REDACTED_AT = 2
BEGIN = f"Read the page .\n{lines(20, 'note')}"
ASKED = "And what is behind the picture ?"
TOOL = {"type": "function", "name": "read", "parameters": {"type": "object"}}
READ = [
    {"type": "message", "role": "user", "content": BEGIN},
    {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": PAGE},
]
Redact = Callable[[], Awaitable[object]]


class Quoting(FirstSentence):
    """Quotes the code, where it reads it. `redact` runs while the first summary is written."""

    def __init__(self) -> None:
        super().__init__()
        self.redact: Redact | None = None

    async def summarize_conversation(self, text: str, num_tokens: int, instructions: str = "") -> Summary:
        self.conversations.append((text, instructions))
        redact, self.redact = self.redact, None
        if redact is not None:
            await redact()
        return Summary(f"The code is {CODE if CODE in text else 'not known'}.", num_tokens, 6)


class Silent(Quoting):
    """Is asked behind the conversation first, and writes nothing there. `redact` runs meanwhile."""

    def live_refusal(self, model: str) -> str:
        return ""

    async def summarize_live(self, live: LivePrompt, shown: Sequence[Message], instructions: str = "") -> Summary:
        redact, self.redact = self.redact, None
        if redact is not None:
            await redact()
        raise Unavailable("the model did not answer")


class Answering(Handler):
    """vLLM's handlers of chats, and what the other routes need of theirs. `redact` runs during the last answer."""

    def __init__(self) -> None:
        super().__init__()
        self.stop_reason_map = {"stop": "end_turn"}
        self.redact: Redact | None = None

    async def create_chat_completion(self, request: Any, raw_request: Any = None) -> ChatCompletionResponse:
        self.seen.append(list(request.messages))
        exchange = CURRENT.get()
        if exchange is not None:
            exchange.acm = {"session_id": exchange.session_id, "receipt": {}}
        redact, self.redact = self.redact, None
        if redact is not None:
            await redact()
        choice = {"index": 0, "message": {"role": "assistant", "content": "Done ."}, "finish_reason": "stop"}
        usage = UsageInfo(prompt_tokens=1, completion_tokens=1, total_tokens=2)
        return ChatCompletionResponse.model_validate(
            {"id": "c", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        )


class Scene:
    """A session over one of the routes, whose tool has told a code."""

    def __init__(self, path: str, summarizer: Quoting | None = None) -> None:
        self.path, self.handler, self.summarizer = path, Answering(), summarizer or Quoting()
        app: Any = vendor_client(self.handler, make_editor(self.summarizer)).app
        app.state.openai_serving_responses = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=4096),
            default_sampling_params={},
            use_harmony=False,
            tool_server=None,
            enable_auto_tools=True,
        )
        self.server: ContextServer = app.state.acm_server
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 50_000))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")
        self._holder: asyncio.Task[None] | None = None

    async def send(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self.client.post(path, json={"model": "m", "session_id": "s", **body})
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def read(self) -> None:
        """The first turn, in which the tool tells the code."""
        if self.path == MESSAGES_PATH:
            story = Blocks().user(BEGIN).step(("read", PAGE))
            await self.send(self.path, {"max_tokens": 9, "messages": story.messages})
        else:
            await self.send(RESPONSES_PATH, {"input": READ, "tools": [TOOL]})
        assert CODE in self.stored

    async def compact(self, **more: Any) -> Any:
        """The next turn, over its threshold."""
        if self.path == MESSAGES_PATH:
            story = Blocks().user(BEGIN).step(("read", PAGE)).say("Done .").user(ASKED)
            edits = [{"type": COMPACT, "trigger": {"type": "input_tokens", "value": 100}, **more}]
            body = {"max_tokens": 9, "messages": story.messages, "context_management": {"edits": edits}}
            return await self.send(self.path, body)
        items = [*READ, {"type": "message", "role": "assistant", "content": "Done ."}]
        body = {"input": [*items, {"type": "message", "role": "user", "content": ASKED}], "tools": [TOOL], **more}
        if self.path == RESPONSES_PATH:
            threshold = 500 if "acm" in more else 100  # the tools of the server stay beside a summary
            body["context_management"] = [{"type": "compaction", "compact_threshold": threshold}]
        return await self.send(self.path, body)

    async def redact(self) -> None:
        """As a caller does it, who is told that the text is gone."""
        messages = {"start": REDACTED_AT, "end": REDACTED_AT + 1}
        edited = await self.client.post(f"{SESSIONS}/s/edits", json={"edits": [{"op": "redact", "messages": messages}]})
        assert edited.status_code == 200, edited.text
        assert CODE not in self.stored

    async def hold_and_redact(self) -> None:
        """Hold the session until the request waits for it with its summary. A redaction is carried out then."""
        session, is_held = self.server.store.get("", "s"), asyncio.Event()

        async def hold() -> None:
            async with self.server.sessions.locked(session):
                is_held.set()
                await until_they_wait(self.server, 1)
                edit = Edit(EditKind.REDACT, messages=(REDACTED_AT, REDACTED_AT + 1))
                await self.server.editor.edit(session, [edit], "exact")

        self._holder = asyncio.create_task(hold())
        await is_held.wait()

    @property
    def stored(self) -> str:
        return str(self.server.store.get("", "s").state)


def written_in(answer: Any) -> str:
    """All that an answer says, its compaction items read."""
    contents = [read_content(item) for item in answer.get("output", ()) if item["type"] == "compaction"]
    return json.dumps([answer, contents])


@pytest.mark.parametrize(
    ("path", "when"),
    [
        *((path, when) for path in (RESPONSES_PATH, MESSAGES_PATH) for when in ("written", "waiting", "never")),
        *((COMPACT_PATH, when) for when in ("written", "never")),
        (RESPONSES_PATH, "waiting, a tool loop"),
    ],
)
def test_a_summary_of_what_was_redacted_meanwhile_is_written_anew(path: str, when: str) -> None:
    """The code was in the next prompt, and in the transcript, after the redaction had been confirmed."""

    async def play() -> tuple[Scene, Any]:
        scene = Scene(path)
        await scene.read()
        is_waiting, is_loop = when.startswith("waiting"), when.endswith("loop")
        scene.summarizer.redact = None if when == "never" else scene.hold_and_redact if is_waiting else scene.redact
        answer = await scene.compact(**({"acm": {"tools": "sculptor"}} if is_loop else {}))
        await scene.client.aclose()
        return scene, answer

    scene, answer = asyncio.run(play())
    is_told = when == "never"
    texts = [written_in(answer)] if path == COMPACT_PATH else [scene.stored, str(scene.handler.seen[-1])]
    assert [CODE in text for text in (*texts, written_in(answer))] == [is_told] * (len(texts) + 1)
    assert len(scene.summarizer.conversations) == (1 if is_told else 2)
    assert all(("The code is not known." in text) is not is_told for text in texts)
    assert not scene.server.sessions.unshared
    scene.server.identifier.families.check_integrity()


@pytest.mark.parametrize("redacted", [True, False], ids=["redacted", "control"])
def test_an_answer_that_ends_behind_its_summary_has_one_without_the_text(redacted: bool) -> None:
    async def play() -> tuple[Scene, Any]:
        scene = Scene(MESSAGES_PATH)
        await scene.read()
        scene.summarizer.redact = scene.redact if redacted else None
        answer = await scene.compact(pause_after_compaction=True)
        await scene.client.aclose()
        return scene, answer

    scene, answer = asyncio.run(play())
    assert answer["stop_reason"] == "compaction"
    assert (CODE in json.dumps(answer)) is not redacted
    assert len(scene.summarizer.conversations) == 1 + redacted


@pytest.mark.parametrize("path", [RESPONSES_PATH, MESSAGES_PATH, COMPACT_PATH])
@pytest.mark.parametrize("redacted", [True, False], ids=["redacted", "control"])
def test_a_summary_that_is_asked_for_again_reads_the_session_again(path: str, redacted: bool) -> None:
    """The text was sent to the model once more, behind its redaction."""

    async def play() -> Scene:
        scene = Scene(path, Silent())
        await scene.read()
        scene.summarizer.redact = scene.redact if redacted else None
        await scene.compact()
        await scene.client.aclose()
        return scene

    scene = asyncio.run(play())
    assert [CODE in text for text, _ in scene.summarizer.conversations] == [not redacted]


@pytest.mark.parametrize("redacted", [True, False], ids=["redacted", "control"])
def test_a_summary_is_not_recorded_where_its_text_is_redacted_while_the_model_answers(redacted: bool) -> None:
    """The code was in the transcript, behind a redaction that had been confirmed, and nobody was told."""

    async def play() -> tuple[Scene, Any]:
        scene = Scene(RESPONSES_PATH)
        await scene.read()
        scene.handler.redact = scene.redact if redacted else None
        answer = await scene.compact()
        await scene.client.aclose()
        return scene, answer

    scene, answer = asyncio.run(play())
    assert CODE in str(scene.handler.seen[-1]), "it was asked for before"
    assert (CODE in scene.stored) is not redacted
    assert ("storage" in answer["acm"]) is redacted
    if redacted:
        assert "redacted meanwhile" in answer["acm"]["storage"]["warning"]
