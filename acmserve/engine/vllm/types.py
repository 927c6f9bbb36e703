"""vLLM's types as the engine's annotations name them. At run time this module is empty: import under
`TYPE_CHECKING`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.multimodal.inputs import MultiModalFeatureSpec as MultiModalFeatureSpec
    from vllm.pooling_params import PoolingParams as PoolingParams
    from vllm.sampling_params import SamplingParams as SamplingParams
    from vllm.v1.core.block_pool import BlockPool as BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheManager as KVCacheManager
    from vllm.v1.core.kv_cache_utils import BlockHash as BlockHash
    from vllm.v1.core.kv_cache_utils import KVCacheBlock as KVCacheBlock
    from vllm.v1.request import Request as Request
