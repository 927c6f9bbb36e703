"""A compaction that writes the conversation out as one text: whose KV it may use, and who is not taken for one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from acmserve.server.identity.families import Families, Placement
from acmserve.server.identity.fingerprint import NUM_SKETCHED, Fingerprint, fingerprint_of, retells
from acmserve.server.identity.prompt import PromptUnits, read_prompt
from acmserve.server.identity.thread_hints import ThreadHints
from tests.support.server.clients import SUMMARY_SYSTEM, TITLE_SYSTEM, ChatClient
from tests.support.server.scripts import log_lines

FAMILY = "ses-1"


def prompt_of(client: ChatClient) -> PromptUnits:
    prompt = read_prompt(client.body)
    assert prompt is not None
    return prompt


def worked(num_steps: int = 4) -> ChatClient:
    main = ChatClient().user("Read the logs, and say what they have in common.")
    for step in range(num_steps):
        main.call("read", log_lines(30, first=30 * step), part=step)
    return main


def told(main: ChatClient, share: float = 1.0, system: str = SUMMARY_SYSTEM) -> ChatClient:
    """The conversation as one text, of each message the first lines."""
    parts = []
    for message in main.messages:
        lines = str(message["content"] or "").splitlines()
        parts.append(f"[{message['role']}]: " + "\n".join(lines[: max(1, round(share * len(lines)))]))
    return main.side(system, {"role": "user", "content": "\n\n".join([*parts, "Sum this up."])})


class Server:
    def __init__(self) -> None:
        self.families = Families()

    def ask(self, client: ChatClient) -> Placement:
        return self.families.place("", FAMILY, prompt_of(client), ThreadHints(), is_explicit=False)


@pytest.fixture
def server() -> Server:
    made = Server()
    for num_steps in range(5):
        assert made.ask(worked(num_steps)).is_main
    return made


@pytest.mark.parametrize("share", [1.0, 0.1])
def test_a_conversation_that_is_retold_shares_the_kv_of_its_session(server: Server, share: float) -> None:
    placed = server.ask(told(worked(), share))
    assert placed.thread.engine_id == FAMILY
    assert placed.thread.session_id != FAMILY
    assert placed.forked_from is None, "one text can have none of the edits"
    assert placed.thread.is_fork, "and it goes with them where something is redacted"
    assert server.ask(worked(5)).is_main
    again = server.ask(told(worked(5), share))
    assert (again.thread.session_id, again.thread.engine_id) == (placed.thread.session_id, FAMILY)
    server.families.check_integrity()


def escaped(main: ChatClient) -> ChatClient:
    return main.side(SUMMARY_SYSTEM, {"role": "user", "content": f"Sum this up: {json.dumps(main.messages)}"})


def title(main: ChatClient) -> ChatClient:
    return main.side(TITLE_SYSTEM, {"role": "user", "content": "Write a title for this:"}, main.messages[0])


def quoting(main: ChatClient) -> ChatClient:
    """A task of its own that quotes a few lines."""
    quoted = str(main.messages[-1]["content"]).splitlines()[:6]
    return main.side(TITLE_SYSTEM, {"role": "user", "content": "\n".join([*quoted, log_lines(60, first=7000)])})


def with_tools(main: ChatClient) -> ChatClient:
    side = told(main)
    side.tools = ("grep",)
    return side


@pytest.mark.parametrize("other", [escaped, title, quoting, with_tools])
def test_another_side_request_has_kv_of_its_own(server: Server, other: Any) -> None:
    placed = server.ask(other(worked()))
    assert placed.thread.engine_id == placed.thread.session_id != FAMILY


def test_another_conversation_is_not_retold() -> None:
    other = ChatClient().user("Read the logs.").call("read", log_lines(90, first=5000))
    assert not retells(fingerprint_of(prompt_of(worked())), prompt_of(told(other)))


def test_a_conversation_that_grows_is_sketched_as_one_that_is_read_at_once() -> None:
    before: Fingerprint | None = None
    for num_steps in range(12):
        prompt = prompt_of(worked(num_steps))
        grown = fingerprint_of(prompt, before)
        assert grown.sketch == fingerprint_of(prompt).sketch
        before = grown
    assert len(grown.sketch) == NUM_SKETCHED
    assert retells(grown, prompt_of(told(worked(11))))
    assert retells(grown, prompt_of(told(worked(11), 0.3)))
    rewritten = fingerprint_of(prompt_of(ChatClient().user("Go.").call("read", log_lines(60, first=9000))), grown)
    assert not set(rewritten.sketch) & set(grown.sketch)
