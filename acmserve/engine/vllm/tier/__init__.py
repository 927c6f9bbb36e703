"""A tier of host memory below the KV blocks: vLLM's own OffloadingConnector, as a child of ours."""
