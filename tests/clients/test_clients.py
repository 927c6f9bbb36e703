"""`make clients`: unmodified agents, installed from the registries, by our server. The base URL is the only change.

Each client is one case, whose failed checks are listed. The table is written to `benchmarks/results/clients.json`.
Recordings and logs stand in `build/clients/walks`.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.clients import facts
from tests.support.clients.conversation import AgentClient, WindowedClient
from tests.support.clients.drivers import EVERY_CLIENT
from tests.support.clients.drivers.python_program import LITELLM_AGENT
from tests.support.clients.errand_server import errand_server
from tests.support.clients.installed import CLIENTS, install
from tests.support.clients.long_walks import (
    walk_budget,
    walk_git_status,
    walk_overflow,
    walk_refusal,
    walk_window,
)
from tests.support.clients.matrix import FAILED, Row, require, write_row
from tests.support.clients.page import write_page
from tests.support.clients.recorder import Exchange, recorder
from tests.support.clients.sessions_api import SessionsApi
from tests.support.clients.walk import Walk, send_again

pytestmark = pytest.mark.skipif(
    not os.environ.get("ACMSERVE_CLIENTS"), reason="`make clients` installs agents from registries"
)


@pytest.mark.parametrize("client", EVERY_CLIENT, ids=lambda client: client.package.folder + "-" + client.name)
def test_client(client: AgentClient, errands: str, start_stock: Callable[[], str]) -> None:
    install(client.package)
    row = Row(client.name, client.package.version)
    seen: list[Exchange] = []
    with row.check("answers"), walk_of(client, errands, row, "turns", seen) as walk:
        walk.run()
    if "git status" in client.can:
        with row.check("answers"), walk_of(client, errands, row, "git", seen) as walk:
            walk_git_status(walk)
    if client.overflow_steps:
        with row.check("answers"), walk_of(client, errands, row, "overflow", seen) as walk:
            walk_overflow(walk)
    if isinstance(client, WindowedClient):
        with row.check("answers"), walk_of(client, errands, row, "refusal", seen) as walk:
            walk_refusal(walk)
        with row.check("answers"), walk_of(client, errands, row, "window", seen) as walk:
            walk_window(walk, client)
    if "budget" in client.can:
        with row.check("answers"), walk_of(client, errands, row, "budget", seen) as walk:
            walk_budget(walk)
    with row.check("served"):
        check_served(seen, start_stock)
    write_row(row)
    write_page()
    failed = row.failed()
    assert not failed, "\n".join([f"{client.name} {row.version}:", *failed])


def test_a_client_without_an_id_fails_where_nobody_infers_its_session(errand_model: Path) -> None:
    """The control of the checks: on a server that finds only what is named, a session is all that makes them green."""
    install(LITELLM_AGENT.package)
    CLIENTS.mkdir(parents=True, exist_ok=True)
    with errand_server(errand_model, CLIENTS / "not-inferring.log", infers=False) as url:
        for session, is_named in ((f"control-{uuid.uuid4().hex}", True), (None, False)):
            row, seen = Row("control", ""), list[Exchange]()
            added = {} if session is None else {"x-session-id": session}
            with walk_of(LITELLM_AGENT, url, row, f"control-{is_named}", seen, added) as walk:
                walk.run()
            if is_named:
                assert row.failed() == []
                assert set(row.found) >= {"session", "turns", "resume", "cached", "fold"}
            else:
                failed = {name for name, found in row.found.items() if found == FAILED}
                assert failed >= {"session", "turns", "resume", "fold"}


@contextmanager
def walk_of(
    client: AgentClient, url: str, row: Row, name: str, seen: list[Exchange], added: Mapping[str, str] | None = None
) -> Iterator[Walk]:
    """A conversation in an empty folder, with a recording of its own. `seen` gets what was recorded."""
    folder = CLIENTS / "walks" / f"{client.package.folder}-{len(client.name)}" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with recorder(url, folder / "recording.jsonl", added) as recording:
        walk = Walk(client, recording, SessionsApi(url), folder, row)
        yield walk
        walk.check_summaries()
        seen.extend(recording.exchanges)


def check_served(seen: list[Exchange], start_stock: Callable[[], str]) -> None:
    """What our server refused is refused by a stock one, too."""
    require(seen, "nothing was recorded")
    failed = [exchange for exchange in facts.asked(seen) if exchange.status >= 400]
    for exchange in failed:
        status = send_again(start_stock(), exchange)
        require(
            status >= 400, f"a stock server answers with {status}, ours with {exchange.status}: {exchange.answer[:300]}"
        )
