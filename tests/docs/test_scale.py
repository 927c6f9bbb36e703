"""The page about replicas, on two: a router that knows sessions keeps them, one that looks at prefixes does not.

`make replicas` runs it with the routers that are installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from acmserve.bench.models.tiny_model import write_tiny_model
from tests.support import http
from tests.support.docs.pages import FLEET_PAGES, ROOT, Block, blocks_of, read_page
from tests.support.docs.runner import PageRunner, run_blocks
from tests.support.server.running_server import START_SECONDS, free_port, wait_until_healthy
from tests.support.server.scripted_server import TEMPLATE

(PAGE,) = FLEET_PAGES
PORTS = ("8001", "8002", "8003", "8004", "8005", "8006")
ROUTERS = {
    "vllm-router": ("## vLLM's router", "8003", "router.pid"),
    "haproxy": ("## HAProxy", "8004", "haproxy.pid"),
    "stack-env/bin/vllm-router": ("## The production stack's router", "8005", "stack.pid"),
    "ray-env/bin/python": ("## Ray Serve", "8006", "ray.pid"),
}
OWN_ROUTES = "stack-env/bin/vllm-router"
"""Passes vLLM's own routes alone. So no branch can be opened through it."""
REPLICAS = ("8001", "8002")
BUILD = ROOT / "build" / "routers"
QUIET = "unset VLLM_ENABLE_V1_MULTIPROCESSING\nexport OMP_NUM_THREADS=1\n"
RAY = "export RAY_AUTH_MODE=disabled RAY_USAGE_STATS_ENABLED=0 RAY_TMPDIR={folder}\n"
NUM_SESSIONS, NUM_CLIENTS = 15, 5

START, DRAIN = "## Two replicas", "## Drain a replica"


def blocks_below(heading: str) -> list[Block]:
    return list(blocks_of(read_page(PAGE).partition(f"{heading}\n")[2].partition("\n## ")[0]))


class Page:
    """The page's shell, and the ports that stand for those on the page."""

    def __init__(self, folder: Path) -> None:
        self.ports = {port: str(free_port()) for port in PORTS}
        model = write_tiny_model(folder / "model", 4096)
        shutil.copy(TEMPLATE, model / "chat_template.jinja")
        self.folder = folder / "page"
        self.folder.mkdir()
        for environment in BUILD.glob("*-env"):
            (self.folder / environment.name).symlink_to(environment)
        self.runner = PageRunner(self.folder, "nowhere", model=model, words=self.ports)
        # Its sockets would have too long a path in a folder of pytest's.
        self.ray = tempfile.mkdtemp(prefix="ray-")
        self.runner.run(Block("bash", QUIET + RAY.format(folder=self.ray), 0))

    def run(self, heading: str) -> None:
        blocks = blocks_below(heading)
        assert blocks, heading
        run_blocks(blocks, self.runner)

    def url(self, port: str) -> str:
        return f"http://127.0.0.1:{self.ports[port]}"

    def close(self) -> None:
        """End what the page has started, the servers first."""
        group = [process for process in psutil.process_iter() if _group_of(process) == self.runner.group]
        for process in group:
            if process.pid != self.runner.group:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
        self.runner.close()
        for process in psutil.wait_procs(group, timeout=START_SECONDS)[1]:
            process.kill()
        shutil.rmtree(self.ray, ignore_errors=True)


def _group_of(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return -1


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    if "ACMSERVE_REPLICAS" not in os.environ:
        pytest.skip("two servers and routers: `make replicas`")
    found = Page(tmp_path_factory.mktemp("scale"))
    try:
        found.run(START)
        yield found
    finally:
        found.close()


def needs(program: str) -> None:
    if shutil.which(BUILD / program if "/" in program else program) is None:
        pytest.skip(f"{program} is not installed")


def turn(url: str, session: str, texts: Sequence[str]) -> dict[str, Any]:
    """One turn of a client that edits its history itself, and names its session in the header."""
    body = {"model": "llama", "max_tokens": 4, "acm": {"fidelity": "reuse"}}
    body |= {"messages": [{"role": "user", "content": text} for text in texts]}
    answer = http.post(f"{url}/v1/chat/completions", json=body, headers={"X-Session-ID": session})
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Session-ID"] == session
    receipt: dict[str, Any] = answer.json()["acm"]["receipt"]
    return receipt


def moved_behind_edits(url: str) -> list[int]:
    """Tokens moved in the second turn of each session, which has dropped a long text near the front of its history.

    Several clients work at a time: a router of idle replicas may send everything to one.
    """
    names = [uuid.uuid4().hex for _ in range(NUM_SESSIONS)]
    long, kept = "The harbour log tells of ships. " * 60, "The keeper wrote down the wind. " * 40

    def begin(name: str) -> None:
        turn(url, name, [f"{name} begins.", f"{name}: {long}", f"{name}: {kept}"])

    def go_on(name: str) -> int:
        return int(turn(url, name, [f"{name} begins.", f"{name}: {kept}", "Go on."])["moved_tokens"])

    with ThreadPoolExecutor(NUM_CLIENTS) as clients:
        list(clients.map(begin, names))
        return list(clients.map(go_on, names))


def branch_of(url: str, name: str) -> dict[str, Any]:
    """What the first turn of a branch says of it. The header has its parent's name, the body its own."""
    turn(url, name, [f"{name}: {'The harbour log tells of ships. ' * 60}"])
    headers, prompt = {"X-Session-ID": name}, {"description": "look", "prompt": "Look around."}
    made = http.post(f"{url}/v1/acm/sessions/{name}/branches", json=prompt, headers=headers).raise_for_status().json()
    body = {"model": "llama", "max_tokens": 4, "session_id": made["branch_id"]}
    context = http.get(f"{url}/v1/acm/sessions/{made['branch_id']}/context", headers=headers).raise_for_status().json()
    body["messages"] = [each["message"] for each in context["messages"]] + [{"role": "user", "content": "Look."}]
    answer = http.post(f"{url}/v1/chat/completions", json=body, headers=headers).raise_for_status().json()
    assert answer["acm"]["session_id"] == made["branch_id"]
    receipt: dict[str, Any] = answer["acm"]["receipt"]
    return receipt


def sessions_of(page: Page, port: str) -> set[str]:
    listed = http.get(f"{page.url(port)}/v1/acm/sessions?limit=1000").raise_for_status().json()["data"]
    return {session["session_id"] for session in listed}


def test_every_block_of_the_page_stands_where_a_test_runs_it() -> None:
    """So the page has none that only a reader would try, and none that the page itself calls not run."""
    run = [START, DRAIN, *(heading for heading, _, _ in ROUTERS.values())]
    found = [block.code for heading in run for block in blocks_below(heading)]
    blocks = list(blocks_of(read_page(PAGE)))
    assert sorted(found) == sorted(block.code for block in blocks)
    assert all(blocks_below(heading) for heading in run)
    assert [block.line for block in blocks if block.not_run] == []


@pytest.mark.parametrize("program", ROUTERS)
def test_a_router_that_knows_sessions_keeps_each_with_its_kv(page: Page, program: str) -> None:
    needs(program)
    heading, port, pid_file = ROUTERS[program]
    before = [sessions_of(page, replica) for replica in REPLICAS]
    page.run(heading)
    try:
        assert all(moved > 100 for moved in moved_behind_edits(page.url(port)))
        first, second = (sessions_of(page, each) - old for each, old in zip(REPLICAS, before, strict=True))
        assert len(first) + len(second) == NUM_SESSIONS + 1
        assert first & second == set()
        assert min(len(first), len(second)) > 0, "both work"
        if program == OWN_ROUTES:
            assert http.get(f"{page.url(port)}/v1/acm/sessions").status_code == 404
            return
        kept = [branch_of(page.url(port), uuid.uuid4().hex)["kept_tokens"] for _ in range(4)]
        assert min(kept) > 100, "a branch meets the KV of its parent"
    finally:
        end(page, pid_file)


def end(page: Page, pid_file: str) -> None:
    """End what a block has started. Another may take its place: Ray lets nobody in before it is gone."""
    process = psutil.Process(int((page.folder / pid_file).read_text()))
    process.send_signal(signal.SIGTERM)
    psutil.wait_procs([process], timeout=START_SECONDS)


@contextmanager
def vllm_router(page: Page, policy: str) -> Iterator[str]:
    port, log = str(free_port()), page.folder / f"{policy}.log"
    command = ["vllm-router", "--policy", policy, "--port", port, "--prometheus-port", str(free_port())]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*command, "--worker-urls", *map(page.url, REPLICAS)], stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(START_SECONDS)


@pytest.mark.parametrize("policy", ["cache_aware", "round_robin"])
def test_a_router_that_does_not_know_sessions_loses_them(page: Page, policy: str) -> None:
    """What the page says of prefixes, and the control of the test above. Half of the sessions are lost by chance."""
    needs("vllm-router")
    with vllm_router(page, policy) as url:
        moved = moved_behind_edits(url)
    assert moved.count(0) >= 2, moved


def test_serve_without_its_session_router_loses_them(page: Page) -> None:
    """The same application, with the router that Ray has where none is named."""
    needs("ray-env/bin/python")
    (block, *_) = (block for block in blocks_below("## Ray Serve") if block.language == "bash")
    plain = block.code.replace(", request_router_config=BY_SESSION", "").partition("until grep")[0]
    assert plain != block.code.partition("until grep")[0]
    page.runner.run(Block("bash", f"{plain}answers localhost:8006\n", block.line))
    try:
        moved = moved_behind_edits(page.url("8006"))
    finally:
        end(page, "ray.pid")
    assert moved.count(0) >= 2, moved


def test_a_replica_is_drained(page: Page) -> None:
    """Every session of it goes on in the other one, where it is known by its transcript."""
    both = sessions_of(page, "8001") | sessions_of(page, "8002")
    page.run(DRAIN)
    assert sessions_of(page, "8002") == both | {"agent-3"}
