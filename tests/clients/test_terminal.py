"""`make clients`: mini-swe-agent works through the twenty tasks of `terminal` in one session, by our server.

The agent is unmodified, and its shell is its own, which is no bash. The model gets three tasks wrong on purpose.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from acmserve.bench.eval.terminal.task import make
from tests.support.clients.drivers.python_program import MINI_SWE_AGENT
from tests.support.clients.errand_server import own_flags, write_model
from tests.support.clients.installed import CLIENTS, install
from tests.support.clients.recorder import recorder
from tests.support.clients.terminal import SOLUTIONS, WRONG, next_command
from tests.support.server.running_server import running_server

SAMPLES = {sample.name.removeprefix("0/"): sample for sample in make({"tasks": 20}, 0)}
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


def test_the_model_goes_on_behind_the_last_task_that_it_finds() -> None:
    assert next_command("Do these.").startswith("cd rename && ")
    assert next_command("cd sum-table && true").startswith("echo COMPLETE_TASK")
    assert list(SOLUTIONS) == list(SAMPLES)


@with_clients
def test_mini_swe_agent_solves_what_the_model_knows(server: str, tmp_path: Path) -> None:
    install(MINI_SWE_AGENT.package)
    work = tmp_path / "work"
    for name, sample in SAMPLES.items():
        (work / name).mkdir(parents=True)
        assert run(sample.facts["setup"], work / name)
    words = "Work on these tasks. Each has a folder of its name.\n" + "".join(
        f"- {name}: {sample.question}\n" for name, sample in SAMPLES.items()
    )
    CLIENTS.mkdir(parents=True, exist_ok=True)
    with recorder(server, tmp_path / "recording.jsonl", None) as recording:
        conversation = MINI_SWE_AGENT.start(recording.url, tmp_path)
        try:
            said = conversation.say(words)
        finally:
            conversation.close()
        prompts = [json.loads(one.answer)["usage"]["prompt_tokens"] for one in recording.exchanges if one.status == 200]
    assert said.error is None
    assert said.cached_tokens, "what the agent itself keeps of the answers' usage"
    solved = {name for name, sample in SAMPLES.items() if run(sample.facts["check"], work / name)}
    assert solved == SAMPLES.keys() - WRONG
    assert len(prompts) > 20
    assert prompts == sorted(prompts)
