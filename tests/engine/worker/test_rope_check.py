"""Keys are measured on vLLM's own Llama, built small. Whatever is done to one of its layers is found out.

the model as it is      every layer's rotation, to the frequency
one layer changed       refused, with the name of the layer and what was measured
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from vllm.model_executor.layers.rotary_embedding.base import RotaryEmbedding

from acmserve.engine.vllm.model.recorded_forward import RecordedForward
from acmserve.engine.vllm.model.small_build import SmallBuild, small_build
from acmserve.engine.worker import rope_check
from acmserve.engine.worker.model_verdict import measure_keys
from acmserve.engine.worker.rope_module import rope_of_module
from acmserve.errors import MoveRefused
from acmserve.kernels.movers import reference
from acmserve.kernels.rope import Rope

NUM_POSITIONS = 4096
HEAD_SIZE = 32
NAMES = [f"model.layers.{layer}.self_attn.attn" for layer in range(3)]
OTHER = Rope(tuple(0.7**i for i in range(HEAD_SIZE // 2)), HEAD_SIZE, True)
Change = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallBuild]:
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=384,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=NUM_POSITIONS,
        architectures=["LlamaForCausalLM"],
    )
    config.save_pretrained(folder)
    with small_build(str(folder), dtype=request.param) as built:
        yield built


def rotary(build: SmallBuild) -> Any:
    return build.model.model.layers[0].self_attn.rotary_emb


class Called(torch.nn.Module):
    """A function in the place of a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def test_the_model_as_it_is(build: SmallBuild) -> None:
    assert measure_keys(build) == dict.fromkeys(NAMES, rope_of_module(rotary(build)))


def turn(key: Tensor, rope: Rope, positions: Tensor, factor: float = 1.0) -> Tensor:
    """Each token's key `[num_tokens, num_heads * head_size]` turned by its own number of positions."""
    heads = key.view(key.shape[0], -1, HEAD_SIZE)
    turned = [reference.rotate(head, rope, int(p * factor)) for head, p in zip(heads, positions.tolist(), strict=True)]
    return torch.stack(turned).to(key.dtype).view_as(key)


def by_position(key: Tensor, factors: Tensor) -> Tensor:
    return (key * factors[:, None]).to(key.dtype)


def beyond(positions: Tensor, limit: int) -> bool:
    return int(positions.max()) >= limit


def one_pair(key: Tensor, positions: Tensor) -> Tensor:
    """The slowest pair of dimensions turns a little more."""
    slow = Rope((*(0.0,) * (HEAD_SIZE // 2 - 1), 1e-3), HEAD_SIZE, True)
    return turn(key, slow, positions)


def own_rope(key: Tensor) -> Rope:
    return rope_of_module(RotaryEmbedding(HEAD_SIZE, HEAD_SIZE, NUM_POSITIONS, 10_000, True, torch.float32))


WEIGHTS = torch.linspace(0.5, 1.5, 64)
CHANGES: dict[str, Change] = {
    "keys grow with the position": lambda p, k, v: (by_position(k, 1 + p * 1e-4), v),
    "a temperature from 2,048 positions on": lambda p, k, v: (by_position(k, 1 + 0.2 * (p >= 2048)), v),
    "turned once more, by another table": lambda p, k, v: (turn(k, OTHER, p), v),
    "turned twice by the same table": lambda p, k, v: (turn(k, own_rope(k), p), v),
    "turned the other way": lambda p, k, v: (turn(k, own_rope(k), p, -2), v),
    "turned at half the positions": lambda p, k, v: (turn(k, own_rope(k), -(p // 2)), v),
    "one pair turns more": lambda p, k, v: (one_pair(k, p), v),
    "another table beyond 2,048 positions": lambda p, k, v: (turn(k, OTHER, p) if beyond(p, 2048) else k, v),
    "another table at the last positions": lambda p, k, v: (turn(k, OTHER, p) if beyond(p, 4095) else k, v),
    "positions counted anew each 512": lambda p, k, v: (turn(k, own_rope(k), -(p - p % 512)), v),
    "a norm with weights behind the rotation": lambda p, k, v: (k * WEIGHTS.to(k.dtype), v),
    "a learned position in the keys": lambda p, k, v: (k + learned(p, k), v),
    "a learned position in the values": lambda p, k, v: (k, v + learned(p, v)),
    "turned values": lambda p, k, v: (k, turn(v, OTHER, p)),
    "keys that are never the same": lambda p, k, v: (k + 0.3 * torch.randn_like(k), v),
    "keys that are not finite": lambda p, k, v: (by_position(k, torch.where(p > 3000, torch.inf, 1.0)), v),
    "no keys at all": lambda p, k, v: (torch.zeros_like(k), v),
}


def learned(positions: Tensor, like: Tensor) -> Tensor:
    table = torch.randn(NUM_POSITIONS, like.shape[-1], generator=torch.Generator().manual_seed(5))
    return (0.3 * table[positions]).to(like.dtype) * like.abs().mean()


def change_layer(build: SmallBuild, layer: int, change: Change) -> list[Any]:
    """Change what one attention layer is called with, in front of what records it."""
    module = build.model.model.layers[layer].self_attn
    positions: list[Tensor] = []

    def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        positions[:] = [kwargs["positions"] if "positions" in kwargs else args[0]]

    def apply(_: Any, args: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        return (args[0], *change(positions[0], args[1], args[2]))

    return [module.register_forward_pre_hook(note, with_kwargs=True), module.attn.register_forward_pre_hook(apply)]


@contextmanager
def hooked(handles: Sequence[Any]) -> Iterator[None]:
    """Take hooks off again at the end."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_layer_is_never_accepted(build: SmallBuild, name: str) -> None:
    with hooked(change_layer(build, 1, CHANGES[name])), pytest.raises(MoveRefused) as refused:
        measure_keys(build)
    assert NAMES[1] in refused.value.reason


def roundings(key: Tensor, positions: Tensor, size: float) -> Tensor:
    """Other roundings wherever the first token does not stand first, as where a core sums in another order."""
    start = int(positions[0])
    noise = torch.randn(key.shape, generator=torch.Generator().manual_seed(start))
    return key * (1 + size * noise).to(key.dtype) if start else key


@pytest.mark.parametrize("size", [2e-4, 0.1])
def test_roundings_that_only_shifted_runs_have_are_no_position(build: SmallBuild, size: float) -> None:
    with hooked(change_layer(build, 1, lambda p, k, v: (roundings(k, p, size), roundings(v, p, size)))):
        if size < rope_check.LEAST_ALLOWED:
            assert measure_keys(build) == dict.fromkeys(NAMES, rope_of_module(rotary(build)))
        else:
            with pytest.raises(MoveRefused, match=f"values of {NAMES[1]} change by"):
                measure_keys(build)


def test_learned_positions_below_every_layer_are_found(build: SmallBuild) -> None:
    seen: list[Tensor] = []

    def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen[:] = [kwargs["positions"]]

    def add(_: Any, __: Any, embedded: Tensor) -> Tensor:
        return embedded + learned(seen[0], embedded)

    handles = [
        build.model.register_forward_pre_hook(note, with_kwargs=True),
        build.model.model.embed_tokens.register_forward_hook(add),
    ]
    refusal = r"positions: values of model.layers.0.self_attn.attn change by"
    with hooked(handles), pytest.raises(MoveRefused, match=refusal):
        measure_keys(build)


def test_a_layer_without_positions_is_told_from_the_others(build: SmallBuild) -> None:
    module = build.model.model.layers[1].self_attn
    rope = module.rotary_emb
    module.rotary_emb = Called(lambda positions, q, k: (q, k))
    try:
        found = measure_keys(build)
    finally:
        module.rotary_emb = rope
    assert found == dict.fromkeys(NAMES, rope_of_module(rope)) | {NAMES[1]: None}


def test_positions_that_start_elsewhere_are_no_matter(build: SmallBuild) -> None:
    """What was refused when the source was read: `rotary_emb(positions + 2)` turns keys by the same difference."""
    module = build.model.model.layers[1].self_attn
    rope = module.rotary_emb
    module.rotary_emb = Called(lambda positions, q, k: rope(positions + 2, q, k))
    longer = RotaryEmbedding(HEAD_SIZE, HEAD_SIZE, NUM_POSITIONS + 2, 10_000, True, torch.float32)
    before, rope.cos_sin_cache = rope.cos_sin_cache, longer.cos_sin_cache.to(rope.cos_sin_cache.dtype)
    try:
        assert measure_keys(build)[NAMES[1]] == rope_of_module(rope)
    finally:
        module.rotary_emb, rope.cos_sin_cache = rope, before


def test_a_model_that_fails_is_refused_with_its_words(build: SmallBuild) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no such kernel")

    handle = build.model.model.layers[2].register_forward_pre_hook(fail)
    try:
        with pytest.raises(MoveRefused, match=r"cannot be measured .RuntimeError: no such kernel"):
            measure_keys(build)
    finally:
        handle.remove()
    assert measure_keys(build)[NAMES[2]] is not None, "the hooks of the failed run are gone"


def test_the_largest_shift_ends_at_the_last_position(build: SmallBuild) -> None:
    seen = []

    class Watched(RecordedForward):
        def __call__(self, positions: Tensor) -> Any:
            seen.append(positions)
            return super().__call__(positions)

    rope_check.ropes_of_model(build.model, NAMES, Watched(build.model, build.vllm_config, NAMES))
    assert max(int(positions.max()) for positions in seen) == NUM_POSITIONS - 1
    assert len(seen) == 7


def test_no_run_reads_behind_the_end_of_a_table(build: SmallBuild) -> None:
    """vLLM lets a model with dynamic NTK reach twice the positions that its table has."""
    rope = rotary(build)
    seen = []

    class Watched(RecordedForward):
        def __call__(self, positions: Tensor) -> Any:
            seen.append(int(positions.max()))
            return super().__call__(positions)

    before, rope.cos_sin_cache = rope.cos_sin_cache, rope.cos_sin_cache[:2000]
    try:
        with pytest.raises(MoveRefused, match="knows 2000 positions, and the engine allows 4096"):
            rope_check.ropes_of_model(build.model, NAMES, Watched(build.model, build.vllm_config, NAMES))
    finally:
        rope.cos_sin_cache = before
    assert max(seen) < 2000


def test_too_few_positions_to_measure() -> None:
    with pytest.raises(MoveRefused, match="8 are too few"):
        rope_check.ropes_of_model(torch.nn.Module(), ["a"], FakeForward(8))


class FakeForward:
    """A model whose one layer has keys that do not turn, and whose other layer uses that one's cache."""

    def __init__(self, num_positions: int) -> None:
        self.num_positions = num_positions
        self._key = torch.randn(8, 1, 16, generator=torch.Generator().manual_seed(1))

    def shared_with(self, name: str) -> str:
        return "a" if name == "b" else name

    def __call__(self, positions: Tensor) -> Any:
        return {"a": rope_check.RecordedKV(self._key, self._key)}


def test_a_layer_that_uses_anothers_cache_turns_like_it() -> None:
    found = rope_check.ropes_of_model(torch.nn.Module(), ["a", "b"], FakeForward(100))
    assert found == {"a": None, "b": None}
    with pytest.raises(MoveRefused, match="layer c was not called"):
        rope_check.ropes_of_model(torch.nn.Module(), ["c"], FakeForward(100))
