"""Context maps are found, bounded, and survive a restart in the sessions' own file."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from acmserve.context.maps.map import ContextMap
from acmserve.context.storage.database import FILE_NAME
from acmserve.context.storage.map_store import MapStore
from acmserve.context.storage.session import Session
from acmserve.context.storage.session_store import SessionStore
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import AcmError, NotFound
from tests.support.context.maps import delete, map_of, taught

KEY = ("", "corpus")


def test_a_map_survives_a_restart_beside_the_sessions(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    sessions, maps = SessionStore(archive=archive), MapStore(archive.maps)
    sessions.create("", "s")
    held = maps.create(KEY, ContextMap())
    made = map_of(("context_roadmap", "the harbour"), ("domain_constants", "7 mills"))
    assert maps.save(held, made)
    sessions.close()
    archive = Archive(tmp_path)
    sessions, maps = SessionStore(archive=archive), MapStore(archive.maps)
    assert maps.get(KEY).context_map == made
    assert isinstance(sessions.get("", "s"), Session)
    maps.delete(KEY)
    sessions.close()
    archive = Archive(tmp_path)
    assert len(MapStore(archive.maps)) == 0
    archive.close()


def test_a_file_of_before_maps_gets_them(tmp_path: Path) -> None:
    SessionStore(archive=Archive(tmp_path)).close()
    archive = Archive(tmp_path)
    MapStore(archive.maps).create(KEY, map_of(("context_roadmap", "a")))
    archive.close()
    archive = Archive(tmp_path)
    assert MapStore(archive.maps).get(KEY).context_map.items[0].text == "a"
    archive.close()


def test_what_left_a_map_is_nowhere_in_the_files(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    maps = MapStore(archive.maps)
    held = maps.create(KEY, map_of(("context_roadmap", "the secret harbour")))
    before = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"secret harbour" in before
    clean = ContextMap(last_number=1)
    maps.save(held, clean)
    assert b"secret harbour" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
    archive.close()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("UPDATE map_1 SET data = CAST('{' AS BLOB)", "Map 'corpus' .* is damaged"),
        ("UPDATE map_1 SET data = CAST('{}' AS BLOB)", "Map 'corpus' .* is damaged"),
        ("DELETE FROM map_1", "it has 0 rows"),
        ("UPDATE meta SET value = 9 WHERE name = 'maps'", "have version 9"),
    ],
)
def test_a_damaged_map_is_refused_by_name(tmp_path: Path, damage: str, said: str) -> None:
    archive = Archive(tmp_path)
    MapStore(archive.maps).create(KEY, map_of(("context_roadmap", "a")))
    archive.close()
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute(damage)
    db.close()
    archive = Archive(tmp_path)
    with pytest.raises(AcmError, match=said):
        MapStore(archive.maps)
    archive.close()


def test_the_least_recently_used_map_goes_pinned_ones_last(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    maps = MapStore(archive.maps, max_maps=3)
    for name in "abc":
        maps.create(("", name), ContextMap(pinned=name == "a"))
    maps.find(("", "b"))
    maps.create(("", "d"), ContextMap())
    assert [held.key[1] for held in maps.list("")] == ["a", "b", "d"]
    maps.check_integrity()
    archive.close()
    archive = Archive(tmp_path)
    assert len(MapStore(archive.maps)) == 3
    archive.close()


def test_sprayed_maps_of_one_key_take_none_of_another() -> None:
    maps = MapStore(max_maps=10)
    for name in "abc":
        maps.create(("mine/salt", name), ContextMap())
    for number in range(1000):
        maps.create((f"other/{number}", f"m{number}"), ContextMap(pinned=True))
    assert [held.key[1] for held in maps.list("mine/salt")] == ["a", "b", "c"]
    assert len(maps) == 10
    maps.check_integrity()


def test_a_deleted_map_takes_no_update() -> None:
    maps = MapStore()
    held = maps.create(KEY, ContextMap())
    maps.delete(KEY)
    assert not maps.save(held, taught(ContextMap(), delete("cr-00001")))
    with pytest.raises(NotFound, match="'corpus'"):
        maps.get(KEY)
    assert maps.create(KEY, ContextMap()) is not held


def test_maps_of_two_tenants_are_two() -> None:
    maps = MapStore()
    maps.create(("a", "corpus"), map_of(("context_roadmap", "mine")))
    assert maps.find(("b", "corpus")) is None
    assert [held.key for held in maps.list("a")] == [("a", "corpus")]
    assert maps.list("b") == []
