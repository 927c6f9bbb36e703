"""Which kinds of KV cache one group may be of, and why the others are refused.

    FullAttentionSpec   K and V of each token                                  moved
    MLAAttentionSpec    a latent and one rotary key for each token             moved
      of a sparse indexer   keys with a scale for each token               refused
      pooled                one entry for several tokens                   refused

Knows vLLM's specs. Does not know tensors or rotations.
"""

from __future__ import annotations

from collections.abc import Sequence

from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
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


def why_not(spec: KVCacheSpec) -> str | None:
    """Why KV of such a group may not be moved. None where it may."""
    parts = _parts(spec)
    latents = [part for part in parts if isinstance(part, MLAAttentionSpec)]
    if any(part.model_version is not None or part.tokens_per_state != 1 for part in latents):
        return POOLED
    if any(part.cache_role is SparseCacheRole.INDEXER for part in latents):
        return INDEXER
    if type(spec) not in (FullAttentionSpec, MLAAttentionSpec):
        return f"model: KV cache of kind {type(spec).__name__}; full and latent attention are supported"
    return None


def why_none_of(specs: Sequence[KVCacheSpec]) -> str | None:
    """Why a model of several groups can never be moved, where one of them is the reason. None where none is."""
    return next((reason for spec in specs if (reason := why_not(spec)) in (INDEXER, POOLED)), None)


def _parts(spec: KVCacheSpec) -> list[KVCacheSpec]:
    """The specs of a group whose layers differ in size only, else itself."""
    return list(spec.kv_cache_specs.values()) if isinstance(spec, UniformTypeKVCacheSpecs) else [spec]
