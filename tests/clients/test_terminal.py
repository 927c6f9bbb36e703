"""`make clients`: mini-swe-agent works through the twenty tasks of `terminal` in one session, by our server.

    mini             calls of a tool, and their results
    mini_textbased   commands as text, and what they gave as messages of the user: observations

The agent is unmodified, and its shell is its own, which is no bash. The model gets three tasks wrong on purpose.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.eval.terminal.task import make
from acmserve.context.session.history import adopt, append_answer
from acmserve.context.session.state import SessionState
from acmserve.context.storage.session import Session
from acmserve.context.transcript.observations import ObservationRule
from acmserve.server.options.map_options import MapOptions
from tests.server.maps.test_maps import Scripted, make_maps
from tests.support.clients import facts
from tests.support.clients.conversation import Said
from tests.support.clients.drivers.python_program import MINI_SWE_AGENT, PythonProgram, text_agent
from tests.support.clients.errand_server import own_flags, write_model
from tests.support.clients.installed import CLIENTS, install
from tests.support.clients.recorder import Exchange, recorder
from tests.support.clients.sessions_api import SessionsApi
from tests.support.clients.terminal import BLOCK, SOLUTIONS, WRONG, due_call, next_command
from tests.support.server.running_server import running_server

SAMPLES = {sample.name.removeprefix("tasks20/0/"): sample for sample in make({"tasks": 20}, 0)}
NEXT = {"role": "user", "content": "Thanks. And who keeps the mill?"}
_EVERY = 1_000_000
with_clients = pytest.mark.skipif(
    not os.environ.get("ACMSERVE_CLIENTS"), reason="`make clients` installs agents from registries"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("terminal")
    flags = own_flags()
    flags[flags.index("tests.support.clients.errand_model:ErrandModel")] = (
        "tests.support.clients.terminal_model:TerminalModel"
    )
    with running_server(write_model(folder / "model"), folder / "server.log", flags, tiny=True) as url:
        yield url


def run(script: str, folder: Path) -> bool:
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=False)
    return done.returncode == 0


@dataclass(frozen=True)
class Worked:
    """What came of the twenty tasks."""

    said: Said
    solved: set[str]
    exchanges: Sequence[Exchange]

    @property
    def prompts(self) -> list[int]:
        return [json.loads(one.answer)["usage"]["prompt_tokens"] for one in self.exchanges]

    @property
    def unmet(self) -> list[object]:
        return [facts.unmet_of(one) for one in self.exchanges]


def work(agent: PythonProgram, url: str, folder: Path) -> Worked:
    install(agent.package)
    place = folder / "work"
    for name, sample in SAMPLES.items():
        (place / name).mkdir(parents=True)
        assert run(sample.facts["setup"], place / name)
    words = "Work on these tasks. Each has a folder of its name.\n" + "".join(
        f"- {name}: {sample.question}\n" for name, sample in SAMPLES.items()
    )
    CLIENTS.mkdir(parents=True, exist_ok=True)
    with recorder(url, folder / "recording.jsonl", None) as recording:
        conversation = agent.start(recording.url, folder)
        try:
            said = conversation.say(words)
        finally:
            conversation.close()
        exchanges = facts.asked(recording.exchanges)
    assert said.error is None
    assert {one.status for one in exchanges} == {200}
    return Worked(said, {name for name, one in SAMPLES.items() if run(one.facts["check"], place / name)}, exchanges)


def shown_of(worked: Worked, url: str) -> list[dict[str, Any]]:
    """The messages of the one session, as the model sees them in the end."""
    (session,) = {facts.session_of(one) for one in worked.exchanges}
    assert session is not None
    return SessionsApi(url).context(session)


def gone_of(shown: Sequence[dict[str, Any]]) -> list[str]:
    """Whose messages are gone."""
    return [message["role"] for message in shown if message["message"] is None]


def lessons_of(exchanges: Sequence[Exchange], rule: str = "auto") -> tuple[int, int]:
    """How many queries a map would learn from during a recorded conversation, and with one further question."""
    model = Scripted()
    maps, session = make_maps(model), Session("", "s", SessionState(observation_rule=ObservationRule(rule)))
    wanted = MapOptions("terminal", evolve_steps=_EVERY)

    async def learn() -> int:
        while maps.updates.num_pending(("", "terminal")):
            await asyncio.sleep(0)
        return sum(question.name == "distiller" for question in model.asked)

    async def replay() -> tuple[int, int]:
        for one in exchanges:
            session.state = adopt(session.state, one.body["messages"]).state
            turn = maps.begin(session, wanted, session.state)
            session.state = append_answer(session.state, {"role": "assistant", "content": facts.said(one)})
            maps.finished(turn, session)
        during = await learn()
        history = [*exchanges[-1].body["messages"], {"role": "assistant", "content": facts.said(exchanges[-1])}, NEXT]
        session.state = adopt(session.state, history).state
        maps.begin(session, wanted, session.state)
        return during, await learn()

    return asyncio.run(replay())


def test_the_model_goes_on_behind_the_last_task_that_it_finds() -> None:
    assert next_command("Do these.").startswith("cd rename && ")
    assert next_command("cd sum-table && true").startswith("echo COMPLETE_TASK")
    assert list(SOLUTIONS) == list(SAMPLES)


def test_the_model_writes_its_command_as_text_where_the_agent_wants_that() -> None:
    said = due_call(f"<|im_start|>system\nWrite\n{BLOCK}\n...\n```<|im_end|>\n<|im_start|>user\nDo these.")
    assert said.startswith(f"THOUGHT: That is next.\n\n{BLOCK}\ncd rename && ")
    assert said.count("```") == 2


@with_clients
def test_mini_swe_agent_solves_what_the_model_knows(server: str, tmp_path: Path) -> None:
    worked = work(MINI_SWE_AGENT, server, tmp_path)
    assert worked.said.cached_tokens, "what the agent itself keeps of the answers' usage"
    assert worked.solved == SAMPLES.keys() - WRONG
    assert len(worked.prompts) > 20
    assert worked.prompts == sorted(worked.prompts)


@with_clients
def test_with_text_alone_it_solves_the_same_under_a_budget_that_takes_its_observations(
    server: str, tmp_path: Path
) -> None:
    """`cwl` takes nothing that a user said. So what it takes are observations. Without them it takes answers alone."""
    whole = work(text_agent(), server, tmp_path / "whole")
    assert whole.solved == SAMPLES.keys() - WRONG
    assert whole.prompts == sorted(whole.prompts)
    assert not any("tools" in one.body for one in whole.exchanges)
    assert {message["role"] for message in whole.exchanges[-1].body["messages"][2:]} == {"user", "assistant"}
    least, most = whole.prompts[0], whole.prompts[-1]
    budget = {"max_tokens": (least + most) // 2, "low_watermark": least + (most - least) // 4, "policy": "cwl"}

    under = work(text_agent(acm={"budget": budget}), server, tmp_path / "under")
    assert under.solved == whole.solved
    assert under.unmet == [None] * len(whole.exchanges)
    assert max(under.prompts) <= budget["max_tokens"] < most
    assert sum(map(facts.evicted_of, under.exchanges)) > 0
    shown = shown_of(under, server)
    gone = gone_of(shown)
    assert gone == ["assistant", "user"] * (len(gone) // 2)
    assert len(gone) >= 4
    assert not any(message["evicted"] for message in shown[:2]), "the system's words and the tasks"

    off = work(text_agent(acm={"budget": budget, "observations": "off"}), server, tmp_path / "off")
    assert set(gone_of(shown_of(off, server))) == {"assistant"}
    assert lessons_of(whole.exchanges) == (0, 1)
    assert lessons_of(whole.exchanges, "off")[0] == len(whole.exchanges)
