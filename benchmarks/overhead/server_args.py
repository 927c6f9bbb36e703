"""The arguments that a server of each column starts with: `vllm serve` without a plugin, or `acmserve serve`.

Each command line is parsed by the one that serves it, so both have their own defaults.
"""

from __future__ import annotations

import os
import socket
from argparse import Namespace
from collections.abc import Sequence
from unittest.mock import patch

MODEL_NAME = "smollm2"


def parse_server_args(column: str, *flags: str) -> Namespace:
    """As vLLM's serve command gets them. Sets the environment of this process, as the servers do."""
    from acmserve.server.app import serve

    argv: Sequence[str] = (MODEL_NAME, "--host", "127.0.0.1", "--port", str(_free_port()), *flags)
    if column == "stock":
        os.environ["VLLM_PLUGINS"] = ""
        args = serve.parse_vllm_flags(argv)
        args.api_server_count = 1
        return args
    with patch.object(serve, "run_command") as run_command:
        assert serve.main(argv) == 0
    found: Namespace = run_command.call_args.args[1]
    return found


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
