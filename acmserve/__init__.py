"""acmserve: an LLM agent edits its context, and vLLM keeps the KV cache it already paid for.

`vllm.LLM(model, **acmserve.engine_config())` switches it on in a program. `acmserve serve MODEL` is the server.
"""

from acmserve.engine.config import engine_config

__all__ = ["__version__", "engine_config"]
__version__ = "0.2.0"
