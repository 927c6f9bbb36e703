"""Loads of adapters: what has other weights, perhaps, is another load, and what cannot be known is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from vllm.lora.request import LoRARequest

from acmserve.engine.requests.adapter_loads import CHANGED, READ_AGAIN, AdapterLoads
from acmserve.errors import IntegrityError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"weights")
    return tmp_path


def test_one_load_stays_the_same_and_has_the_hashes_of_vllm(folder: Path) -> None:
    loads, lora = AdapterLoads(), LoRARequest("a", 1, str(folder))
    loads.on_load(lora)
    first = loads.of(lora)
    assert first == loads.of(lora)
    assert (first[0].hash_key, first[1]) == (None, None)
    loads.on_load(lora)
    assert loads.of(lora) == first, "vLLM does not load what it has"


def test_names_and_paths_are_apart(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    loads = AdapterLoads()
    other = str(tmp_path_factory.mktemp("other"))
    found = [
        loads.of(LoRARequest(name, index + 1, path))[0]
        for index, (name, path) in enumerate([("a", str(folder)), ("b", str(folder)), ("a", other)])
    ]
    assert len(set(found)) == 3
    assert [adapter.hash_key for adapter in found] == [None] * 3, "name and path are in vLLM's hashes"


def test_unloaded_and_loaded_again_it_is_another_load(folder: Path) -> None:
    loads = AdapterLoads()
    before, _ = loads.of(LoRARequest("a", 1, str(folder)))
    after, refusal = loads.of(LoRARequest("a", 2, str(folder)))
    assert before != after
    assert after.hash_key is not None
    assert refusal is None


def test_a_load_that_only_requests_without_session_had_counts(folder: Path) -> None:
    """Their KV is under vLLM's hashes, where a session of the next load must not find it."""
    loads = AdapterLoads()
    loads.note(LoRARequest("a", 1, str(folder)))
    assert loads.of(LoRARequest("a", 2, str(folder)))[0].hash_key is not None
    assert loads.of(LoRARequest("a", 1, str(folder)))[0].hash_key is None


def test_loaded_in_place_it_is_another_load_until_the_files_change_again(folder: Path) -> None:
    loads = AdapterLoads()
    before, _ = loads.of(LoRARequest("a", 1, str(folder)))
    in_place = LoRARequest("a", 1, str(folder), load_inplace=True)
    loads.on_load(in_place)
    after, refusal = loads.of(in_place)
    assert (before != after, after.hash_key is not None, refusal) == (True, True, None)
    assert loads.of(in_place)[0] == after
    os.utime(folder / "adapter_model.safetensors", ns=(1, 1))
    again, refusal = loads.of(in_place)
    assert (again in (before, after), again.hash_key is not None, refusal) == (False, True, None)


def test_files_that_change_under_a_load_are_refused_until_it_is_loaded_again(folder: Path) -> None:
    loads, lora = AdapterLoads(), LoRARequest("a", 1, str(folder))
    before, _ = loads.of(lora)
    (folder / "adapter_model.safetensors").write_bytes(b"other weights")
    found = [loads.of(lora) for _ in range(2)]
    assert [refusal for _, refusal in found] == [CHANGED] * 2
    assert len({before, *(adapter for adapter, _ in found)}) == 3, "what vLLM kept of either weights is not found"
    again, refusal = loads.of(LoRARequest("a", 2, str(folder)))
    assert refusal is None
    assert again.hash_key is not None


def test_in_place_from_a_hub_nobody_knows_the_weights() -> None:
    loads = AdapterLoads()
    assert loads.of(LoRARequest("a", 1, "some/name"))[1] is None
    in_place = LoRARequest("a", 1, "some/name", load_inplace=True)
    loads.on_load(in_place)
    assert loads.of(in_place)[1] == READ_AGAIN


def test_a_dropped_load_comes_back_as_another_one() -> None:
    loads = AdapterLoads(max_loads=2)
    first = loads.of(LoRARequest("a", 1, "/a"))[0]
    for index in range(2, 5):
        loads.of(LoRARequest(f"a{index}", index, f"/a{index}"))
    loads.check_integrity()
    assert len(loads) == 2
    again = loads.of(LoRARequest("a", 1, "/a"))[0]
    assert again != first
    assert again.hash_key is not None, "vLLM's hashes would find the first one's KV"
    loads._max_loads = 1
    with pytest.raises(IntegrityError, match="2 with 2 numbers, 1 allowed"):
        loads.check_integrity()
