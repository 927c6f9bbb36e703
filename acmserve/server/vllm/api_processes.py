"""Which of vLLM's API server processes this is. vLLM keeps the number in its parallel configuration.

Does not know sessions. The engine processes have no number, and neither has the parent process.
"""

from __future__ import annotations

from typing import Any


def api_process_rank(vllm_config: Any) -> int:
    """The number of this API server process, from 0 on."""
    rank: int = vllm_config.parallel_config._api_process_rank
    return rank
