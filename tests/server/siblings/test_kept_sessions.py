"""A start of several API servers on a folder whose sessions have other owners, without a server."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from acmserve.context.storage.map_store import MapStore
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.shared_folder import share_of
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import AcmError
from acmserve.server.app.early_checks import check_settings
from acmserve.server.options.config import ContextConfig
from acmserve.server.siblings.ownership import Ownership
from tests.support.context.maps import map_of

NAMES = [f"agent-{number}" for number in range(20)]


def keep(folder: Path, ownership: Ownership, *, as_maps: bool = False) -> None:
    """Sessions, or context maps, of a server's own."""
    for index in range(ownership.num_servers):
        store = SessionStore(archive=(archive := Archive(share_of(folder, index, ownership.num_servers))))
        maps = MapStore(archive.maps)
        for name in NAMES:
            if ownership.owner_of("", name) == index:
                maps.create(("", name), map_of()) if as_maps else store.create("", name)
        store.close()


def start(folder: Path, ownership: Ownership) -> None:
    config = ContextConfig(data_dir=str(folder), infer_sessions=ownership.by_tenant)
    check_settings(config, ownership.num_servers)


@pytest.mark.parametrize("num_servers", [2, 3])
@pytest.mark.parametrize("by_tenant", [False, True])
@pytest.mark.parametrize("as_maps", [False, True])
def test_a_start_that_would_not_find_its_sessions_is_refused(
    tmp_path: Path, num_servers: int, by_tenant: bool, as_maps: bool
) -> None:
    then, now = Ownership(num_servers, by_tenant), Ownership(num_servers, not by_tenant)
    keep(tmp_path, then, as_maps=as_maps)
    num_lost = sum(then.owner_of("", name) != now.owner_of("", name) for name in NAMES)
    remedy = "Start with --infer-sessions" if by_tenant else "Start without --infer-sessions"
    with pytest.raises(AcmError, match=f"would not find {num_lost} of {len(NAMES)}. {remedy}") as refused:
        start(tmp_path, now)
    assert "\n" not in str(refused.value)
    start(tmp_path, then)


def test_a_folder_without_sessions_takes_either_start(tmp_path: Path) -> None:
    for by_tenant in (False, True, False):
        start(tmp_path, Ownership(2, by_tenant))


@pytest.mark.parametrize("num_servers", [1, 2])
def test_a_start_that_is_checked_reads_no_map_and_makes_no_table(tmp_path: Path, num_servers: int) -> None:
    """Maps are read once, when their store is made."""
    start(tmp_path, Ownership(2))
    start(tmp_path, Ownership(num_servers))
    for file in tmp_path.rglob("sessions.sqlite3"):
        with closing(sqlite3.connect(file)) as db:
            assert db.execute("SELECT name FROM sqlite_schema WHERE name GLOB 'map*'").fetchall() == []
    keep(tmp_path, Ownership(2), as_maps=True)
    for file in tmp_path.rglob("api-server-*/sessions.sqlite3"):
        with closing(sqlite3.connect(file)) as db:
            db.execute("UPDATE map_1 SET data = x'7b'")
            db.commit()
    start(tmp_path, Ownership(2))
    with pytest.raises(AcmError, match="Start without --infer-sessions"):
        start(tmp_path, Ownership(2, True))


def test_one_server_owns_all(tmp_path: Path) -> None:
    keep(tmp_path, Ownership(1))
    for by_tenant in (False, True):
        start(tmp_path, Ownership(1, by_tenant))


def test_a_folder_of_both_kinds_takes_the_start_that_finds_more(tmp_path: Path) -> None:
    """Earlier versions did start so. Nobody is left without a start that works."""
    lost = next(name for name in NAMES if Ownership(2).owner_of("", name) != Ownership(2, True).owner_of("", name))
    keep(tmp_path, Ownership(2))
    stray = SessionStore(archive=Archive(share_of(tmp_path, Ownership(2, True).owner_of("", lost), 2)))
    stray.create("", lost)
    stray.close()
    start(tmp_path, Ownership(2))
    with pytest.raises(AcmError, match="Start without --infer-sessions"):
        start(tmp_path, Ownership(2, True))
