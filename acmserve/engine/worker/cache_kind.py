"""Which caches of vLLM's latent attention are none that a move could turn.

    MLAAttentionSpec        a latent and one rotary key for each token         moved
      of a sparse indexer   keys with a scale for each token                 refused
      pooled                one entry for several tokens                     refused

All three have one class. `engine/groups/facts.py` goes by classes, so these are told apart first. Knows vLLM's specs.
Does not know tensors or rotations.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.kv_cache_interface import (
    KVCacheSpec,
    MLAAttentionSpec,
    SparseCacheRole,
    UniformTypeKVCacheSpecs,
)

INDEXER = (
    "model: a sparse indexer keeps keys of its own beside the KV cache, quantised with a scale for each token after "
    "they were turned; turning them is not supported"
)
POOLED = "model: pooled attention keeps one entry for several tokens, and only shifts by whole pools could be moved"


def why_never(specs: Sequence[KVCacheSpec]) -> str | None:
    """Why KV of a model with such groups can never be moved. None where `engine/groups/facts.py` decides."""
    latents = [part for spec in specs for part in _parts(spec) if isinstance(part, MLAAttentionSpec)]
    if any(part.model_version is not None or part.tokens_per_state != 1 for part in latents):
        return POOLED
    if any(part.cache_role is SparseCacheRole.INDEXER for part in latents):
        return INDEXER
    return None


def _parts(spec: KVCacheSpec) -> list[KVCacheSpec]:
    """The specs of a group whose layers differ in size only, else itself."""
    return list(spec.kv_cache_specs.values()) if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]
