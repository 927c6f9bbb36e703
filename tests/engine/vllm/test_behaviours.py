"""What vLLM's cache must do holds, and a vLLM that does otherwise turns the plugin off, by the behaviour's name."""

from __future__ import annotations

import importlib.metadata
import logging
from collections.abc import Callable
from typing import Any

import pytest
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import FreeKVCacheBlockQueue

from acmserve.engine.plugin.entry_point import register
from acmserve.engine.vllm import version
from acmserve.engine.vllm.behaviours import BEHAVIOURS, Behaviour, broken_behaviours

Break = Callable[[pytest.MonkeyPatch], None]


def other_hashes(patch: pytest.MonkeyPatch) -> None:
    stock: Any = kv_cache_utils.hash_block_tokens

    def salted(hash_function: Any, parent_block_hash: Any, curr_block_token_ids: Any, extra_keys: Any = None) -> Any:
        return stock(hash_function, parent_block_hash, curr_block_token_ids, (*(extra_keys or ()), "later"))

    patch.setattr(kv_cache_utils, "hash_block_tokens", salted)


def keep_evicted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "_maybe_evict_cached_block", lambda self, block: False)


def free_to_the_front(patch: pytest.MonkeyPatch) -> None:
    def prepend_n(queue: Any, blocks: Any) -> None:
        for block in blocks:
            first = queue.fake_free_list_head.next_free_block
            for one, other in ((queue.fake_free_list_head, block), (block, first)):
                one.next_free_block, other.prev_free_block = other, one
            queue.num_free_blocks += 1

    patch.setattr(FreeKVCacheBlockQueue, "append_n", prepend_n)


def tell_nobody(patch: pytest.MonkeyPatch) -> None:
    stock = BlockPool.unpin_blocks
    patch.setattr(BlockPool, "unpin_blocks", lambda self, blocks, on_reuse: stock(self, blocks, lambda block: None))


def touch_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "touch", lambda self, blocks: None)


BREAKS: dict[str, Break] = {
    "hashes": other_hashes,
    "index": keep_evicted,
    "queue": free_to_the_front,
    "reuse": tell_nobody,
    "references": touch_nothing,
}


def test_the_installed_engine_behaves() -> None:
    assert broken_behaviours(BEHAVIOURS) == []
    assert [behaviour.name for behaviour in BEHAVIOURS] == list(BREAKS)


@pytest.mark.parametrize("name", BREAKS)
def test_another_behaviour_turns_the_plugin_off_and_is_named(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry: dict[str, Any] = {}
    monkeypatch.setattr(KVConnectorFactory, "_registry", registry)
    with monkeypatch.context() as patch, caplog.at_level(logging.ERROR, logger="acmserve"):
        BREAKS[name](patch)
        register()
    assert "acmserve is off" in caplog.text
    assert f" {name}: " in caplog.text
    assert registry == {}


def test_what_a_check_raises_is_its_finding() -> None:
    (problem,) = broken_behaviours([Behaviour("division", lambda: str(1 // 0))])
    assert problem == "division: ZeroDivisionError: integer division or modulo by zero"


def test_a_version_that_nobody_tested_runs_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.99.0")
    with caplog.at_level(logging.WARNING, logger="acmserve"):
        version.check_engine()
    assert "0.99.0 was not tested with acmserve. It runs" in caplog.text


def test_a_tested_version_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="acmserve"):
        version.check_engine()
    assert caplog.text == ""


def test_checks_leave_the_root_of_all_hashes_alone() -> None:
    before = getattr(kv_cache_utils, "NONE_HASH", None)
    assert broken_behaviours(BEHAVIOURS) == []
    assert getattr(kv_cache_utils, "NONE_HASH", None) is before
