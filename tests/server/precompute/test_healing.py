"""A heal is believed where it computed what the client's next request begins with, and not where it has another prompt.

The object that stands for the engine renders as a server that leaves the tools out with `tool_choice` none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from acmserve.context.session.render import render
from acmserve.server.precompute.background_request import frame_of
from acmserve.server.precompute.precomputer import PAUSE_SECONDS
from tests.server.precompute.test_precomputer import TOOL, Client, Engine, made_edit, make_server
from tests.support.instant_loop import run_instantly

NAMED = {"type": "function", "function": {"name": "read"}}
MOVES = [{"dst_start": 10, "src_start": 50, "num_tokens": 80}]
OTHER = -1


class Rendering(Engine):
    """Without the tools a prompt is another one, from token `num_same` on."""

    def __init__(self, num_same: int = 0) -> None:
        super().__init__()
        self.num_same = num_same
        self.num_rendered = 0

    def prompt_of(self, body: Mapping[str, Any]) -> list[int]:
        prompt = super().prompt_of(body)
        if body.get("tools") and body.get("tool_choice") != "none":
            return prompt
        return prompt[: self.num_same] + [OTHER] * (len(prompt) - self.num_same)

    async def render(self, body: Mapping[str, Any]) -> list[int] | None:
        self.num_rendered += 1
        return self.prompt_of(body)


@pytest.mark.parametrize(
    ("given", "taken"),
    [("auto", "auto"), ("none", "none"), ("required", "auto"), (NAMED, "auto"), (None, None)],
    ids=["auto", "none", "required", "named", "nothing"],
)
def test_a_forced_call_leaves_the_tools_in_the_prompt(given: Any, taken: str | None) -> None:
    frame = frame_of({"model": "m", "tools": [TOOL], "tool_choice": given})
    assert frame.body([]).get("tool_choice") == taken
    assert frame.body([])["tools"] == [TOOL]


def stale_after(engine: Rendering, *, edits: bool = False, **body: Any) -> tuple[int, int]:
    """Tokens that count as moved behind a heal of a context with moved KV, and how many heals were sent."""
    server = make_server(engine, "heal")

    async def scene() -> None:
        client = Client(server, **body)
        client.moves = MOVES
        engine.serves_others = edits
        await client.ask("lorem " * 200)
        session = server.store.get("", "s")
        if edits:
            await server.editor.edit(session, [made_edit("fold", 1)], None)
            server.precompute.note_edit(session)
            engine.serves_others = False
            await asyncio.sleep(60)
        await asyncio.sleep(3 * PAUSE_SECONDS)
        assert engine.bodies[-1]["messages"] == render(session.state)

    run_instantly(scene())
    return server.served.of("", "s").num_stale, len(engine.bodies)


@pytest.mark.parametrize("edits", [False, True], ids=["as it was", "edited since"])
@pytest.mark.parametrize("choice", ["required", NAMED, "auto"], ids=["required", "named", "auto"])
def test_the_context_of_a_client_that_forces_calls_is_healed(choice: Any, *, edits: bool) -> None:
    engine = Rendering()
    assert stale_after(engine, edits=edits, tools=[TOOL], tool_choice=choice) == (0, 1)
    assert engine.num_rendered == int(edits)


@pytest.mark.parametrize("edits", [False, True], ids=["as it was", "edited since"])
@pytest.mark.parametrize(("num_same", "is_healed"), [(0, False), (89, False), (90, True)])
def test_another_prompt_heals_nothing(num_same: int, *, is_healed: bool, edits: bool) -> None:
    """All in front of the last moved token has to be the same. What stands behind it may differ."""
    num_stale, num_sent = stale_after(Rendering(num_same), edits=edits, tools=[TOOL], tool_choice="none")
    assert num_stale == (0 if is_healed else 190)
    assert num_sent == 1, "it is not tried again before the next turn"
