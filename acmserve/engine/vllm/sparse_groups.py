"""KV cache groups of which vLLM keeps little: what a boundary needs in them, and whether a request's boundary is kept.

    group       what a prefix that ends at boundary b needs           vLLM 0.32 keeps by default
    full        every block                                           every block
    window W    the blocks of the last W - 1 tokens                   those in front of the last token of the prompt
    recurrent   the state at b, which a chunk must end at             the same

`request.shared_prefix_boundary` is one more place where vLLM keeps them. It is a public attribute, read whenever a
chunk of prefill is allocated. vLLM itself sets it when a request is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from acmserve.plan.rules.boundaries import BoundaryRules, GroupTail
from acmserve.plan.rules.states import StateRules

if TYPE_CHECKING:
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.request import Request


def boundary_rules(manager: KVCacheManager, states: StateRules | None) -> BoundaryRules | None:
    """What boundaries cost in this engine. None where every group keeps all that it computed.

    `states` are the rules of those that are moved.
    """
    coordinator = manager.coordinator
    tails = [tail for _, tail in sparse_groups(manager)]
    if not manager.enable_caching or not tails:
        return None
    alignment = coordinator.scheduler_block_size
    is_eagle = bool(coordinator.eagle_group_ids)
    return BoundaryRules(
        alignment,
        alignment if is_eagle else 0,
        tuple(tails),
        bytes_of_block(manager.kv_cache_config),
        any(_is_recurrent(group) for group in coordinator.single_type_managers),
        states,
    )


def sparse_groups(manager: KVCacheManager) -> Iterator[tuple[int, GroupTail]]:
    """(group, what it needs at a boundary) of the groups that keep less than all."""
    is_dense = manager.coordinator.retention_interval is None
    for index, group in enumerate(manager.coordinator.single_type_managers):
        if not group.kv_cache_spec.prefix_cacheable:
            continue
        if _is_recurrent(group):
            yield index, GroupTail(group.block_size, 1)
        elif not is_dense and (window := _window_of(group)):
            num_behind = int(group.use_eagle)
            yield index, GroupTail(group.block_size, -(-(window - 1) // group.block_size) + num_behind, num_behind)


def is_kept(manager: KVCacheManager, request: Request, boundary: int) -> bool:
    """Whether every group that keeps little has what `boundary` needs, for the tokens of this request.

    The first and the last block are looked up: vLLM frees a tail from its end.
    """
    from vllm.v1.core.kv_cache_utils import resolve_block_hashes

    for index, tail in sparse_groups(manager):
        group = manager.coordinator.single_type_managers[index]
        hashes = resolve_block_hashes(request.block_hashes, manager.block_pool.hash_block_size, group.block_size)
        blocks = tail.blocks_at(boundary)
        if not all(
            block < len(hashes) and group.block_pool.get_cached_block(hashes[block], [index])
            for block in {blocks[0], blocks[-1]}
        ):
            return False
    return True


def describe_sparse(config: KVCacheConfig) -> str | None:
    """The layers of which vLLM keeps little, in words. None where there are none."""
    from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec

    specs = [group.kv_cache_spec for group in config.kv_cache_groups]
    windows = sorted({spec.sliding_window for spec in specs if isinstance(spec, SlidingWindowSpec)})
    found = [f"windows of {window} tokens" for window in windows]
    found += ["recurrent states"] if any(isinstance(spec, MambaSpec) for spec in specs) else []
    return ", ".join(found) or None


def bytes_of_block(config: KVCacheConfig) -> int:
    """Bytes of one block of the pool, over all layers that share it."""
    num_bytes = sum(tensor.size for tensor in config.kv_cache_tensors)
    if num_bytes:
        return num_bytes // config.num_blocks
    return max(group.kv_cache_spec.page_size_bytes * len(group.layer_names) for group in config.kv_cache_groups)


def _is_recurrent(group: Any) -> bool:
    from vllm.v1.kv_cache_interface import MambaSpec

    return isinstance(group.kv_cache_spec, MambaSpec) and group.kv_cache_spec.prefix_cacheable


def _window_of(group: Any) -> int:
    from vllm.v1.kv_cache_interface import SlidingWindowSpec

    return group.kv_cache_spec.sliding_window if isinstance(group.kv_cache_spec, SlidingWindowSpec) else 0
