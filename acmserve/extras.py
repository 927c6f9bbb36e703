"""How an extra of acmserve is installed, for messages that name it as the remedy. acmserve is on no package index."""

from __future__ import annotations

_CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def install_extras(*extras: str) -> str:
    """The command, which runs in a checkout. vLLM's CPU build needs PyTorch's, from an index of its own."""
    command = f"pip install '.[{','.join(extras)}]'"
    return f"{command} --extra-index-url {_CPU_INDEX}" if "cpu" in extras else command
