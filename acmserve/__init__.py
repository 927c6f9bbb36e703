"""acmserve: an LLM agent edits its context, and vLLM keeps the KV cache it already paid for.

`vllm.LLM(model, **acmserve.engine_config())` switches it on in a program. `acmserve serve MODEL` is the server.
`acmserve.client` is for programs that talk to one.

Decision: `engine_config` is imported when it is asked for. So a program that only wants the client loads no engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from acmserve.engine.config import engine_config

__all__ = ["__version__", "engine_config"]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """`acmserve.engine_config`."""
    if name != "engine_config":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from acmserve.engine.config import engine_config

    return engine_config
