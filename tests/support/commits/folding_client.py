"""A client whose model folds under `acm.commit: cheapest`. A stand-in says the calls, sessions and tools are real."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, cast

from starlette.responses import JSONResponse, StreamingResponse

from acmserve.context.session.render import render
from acmserve.context.session.waiting import waiting
from acmserve.context.storage.session import Session
from acmserve.plan.request import SessionParams
from acmserve.server.chat.options import ChatRequest
from acmserve.server.chat.turn import answer_chat
from acmserve.server.context.server import ContextServer
from acmserve.server.options.loop_options import LoopOptions
from acmserve.server.vllm.handlers import ChatCompletionRequest
from tests.support.routes.stand_in_model import RAW, Model, call, said
from tests.support.server.acm_app import make_server

NUM_FRAGMENTS = 6
TEXT = "".join(f"Word number {n} of a long text. " for n in range(400))
CUT = call("fragment_context", start_marker="BEGIN", end_marker="END", num_fragments=NUM_FRAGMENTS)


class FoldingClient:
    """A client of one session, which resends its history, and the server behind it."""

    def __init__(
        self,
        server: ContextServer | None = None,
        *,
        text: str = f"BEGIN {TEXT}END",
        cut: Mapping[str, Any] = CUT,
        commit: str = "cheapest",
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        self.server = server or make_server()
        self.history: list[dict[str, Any]] = [{"role": "user", "content": text}]
        self.models: list[Model] = []
        self.commit = commit
        self.encode = encode or cast(Any, self.server.tokenizer).encode
        self.ask(said(None, cut), said("Cut."))
        self.say("Fold what you can.")

    @property
    def session(self) -> Session:
        return self.server.store.get("", "s")

    @property
    def ids(self) -> list[str]:
        return [fragment.fragment_id for fragment in self.session.state.fragments]

    def say(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def fold(self, *numbers: int) -> dict[str, Any]:
        """A completion that folds these fragments."""
        return said(None, *(call("fold_fragment", f"c{n}", fragment_id=self.ids[n]) for n in numbers))

    def request(self, *lines: Any, stream: bool = False, loop: bool = True) -> Any:
        body = {"model": "m", "messages": self.history, "stream": stream}
        options = LoopOptions(("sculptor", "branch"), 20, commit=self.commit) if loop else None
        request = ChatCompletionRequest(**json.loads(json.dumps(body)))
        chat = ChatRequest(request, cast(Any, RAW), body, SessionParams("s"), "", options, rollout=True)
        self.models.append(Model(*lines, encode=self.encode))
        return answer_chat(self.server, chat, self.models[-1])

    def ask(self, *lines: Any, loop: bool = True) -> dict[str, Any]:
        response = asyncio.run(self.request(*lines, loop=loop))
        assert isinstance(response, JSONResponse)
        body: dict[str, Any] = json.loads(bytes(response.body))
        if response.status_code == 200:
            self.history.append(body["choices"][0]["message"])
        return body

    def stream(self, *lines: Any, until: Callable[[dict[str, Any]], bool] | None = None) -> list[dict[str, Any]]:
        """The events of a stream, up to the one behind which the client leaves."""

        async def collect() -> list[dict[str, Any]]:
            response = await self.request(*lines, stream=True)
            assert isinstance(response, StreamingResponse)
            events: list[dict[str, Any]] = []
            async for event in response.body_iterator:
                data = str(event).removeprefix("data: ").strip()
                if not data.startswith("{"):
                    continue
                events.append(json.loads(data))
                if until is not None and until(events[-1]):
                    await cast(Any, response.body_iterator).aclose()
                    break
            return events

        return asyncio.run(collect())

    def leave_behind_folds(self, *numbers: int, when_all_wait: Callable[[], object] = lambda: None) -> None:
        """Fold one a step, and leave when all of them are accepted."""

        def is_last(event: dict[str, Any]) -> bool:
            if event.get("acm", {}).get("event") != "tool" or event["acm"]["step"] < len(numbers) - 1:
                return False
            assert [f.fragment_id for f in waiting(self.session.state)] == [self.ids[number] for number in numbers]
            assert shown(self) == TEXT
            when_all_wait()
            return True

        folds = [self.fold(number) for number in numbers]
        self.stream(*folds, said("Never heard."), until=is_last)


def shown(client: FoldingClient) -> str:
    """What the prompt has of the long text."""
    content: str = render(client.session.state)[0]["content"]
    return content.removeprefix("BEGIN ").removesuffix("END")


def marked(client: FoldingClient, *numbers: int) -> bool:
    """Whether these fragments, and no others, stand in the prompt as markers, and nothing waits."""
    text = shown(client)
    hidden = [name for name in client.ids if name in text]
    return hidden == [client.ids[number] for number in numbers] and waiting(client.session.state) == ()
