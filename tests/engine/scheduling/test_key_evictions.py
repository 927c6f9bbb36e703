"""Keys go in order, a bounded number in each step."""

from __future__ import annotations

from typing import Any

import pytest

from acmserve.engine.scheduling import key_evictions
from acmserve.engine.scheduling.key_evictions import KeyEvictions
from acmserve.engine.vllm import block_pool
from acmserve.errors import IntegrityError


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The keys that were taken out of the pool."""
    keys: list[bytes] = []
    monkeypatch.setattr(block_pool, "evict_keys", lambda pool, evicted, num_groups: keys.extend(evicted))
    monkeypatch.setattr(key_evictions, "MAX_KEYS", 3)
    return keys


def _evictions() -> KeyEvictions:
    pool: Any = None
    return KeyEvictions(pool, 1, lambda keys: None)


def test_keys_go_a_few_in_each_step(gone: list[bytes]) -> None:
    evictions = _evictions()
    first, second = evictions.add([b"1", b"2"]), evictions.add([b"3", b"4", b"5"])
    assert gone == [b"1", b"2", b"3"]
    assert evictions.is_done(first)
    assert not evictions.is_done(second)
    evictions.begin_step()
    assert gone == [b"1", b"2", b"3", b"4", b"5"]
    assert evictions.is_done(second)
    evictions.check_integrity()


def test_what_else_a_key_names_goes_with_it(gone: list[bytes]) -> None:
    told: list[bytes] = []
    pool: Any = None
    evictions = KeyEvictions(pool, 1, told.extend)
    ticket = evictions.add([b"1", b"2", b"3", b"4"])
    assert told == gone == [b"1", b"2", b"3"]
    evictions.begin_step()
    assert evictions.is_done(ticket)
    assert told == gone == [b"1", b"2", b"3", b"4"]


def test_nothing_to_go_is_done_at_once(gone: list[bytes]) -> None:
    evictions = _evictions()
    assert evictions.is_done(evictions.add([]))
    assert evictions.is_done(0)
    assert gone == []


def test_a_lost_key_is_noticed(gone: list[bytes]) -> None:
    evictions = _evictions()
    evictions.add([b"1", b"2", b"3", b"4"])
    evictions._keys.clear()
    with pytest.raises(IntegrityError, match="0 keys wait, 4 added, 3 gone"):
        evictions.check_integrity()
