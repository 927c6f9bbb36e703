"""Entry point of vLLM's endpoint plugins: sessions over HTTP, or none, and a line that says why."""

from __future__ import annotations

import logging
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from acmserve.errors import EngineMismatch
from acmserve.server.vllm.seams import check_server

if TYPE_CHECKING:
    from fastapi import FastAPI

    from acmserve.server.app.session_endpoint import SessionEndpoint

logger = logging.getLogger(f"vllm.{__name__}")


class NoEndpoint:
    """Stands in where vLLM's HTTP side does not fit: its routes stay as they are."""

    name = "acmserve"
    required_tasks = ("generate",)

    def attach_router(self, app: FastAPI) -> None:
        """No route of vLLM is replaced."""

    async def init_state(self, engine_client: Any, state: Any, args: Namespace) -> None:
        """No session is opened."""


def create() -> SessionEndpoint | NoEndpoint:
    """Entry point `vllm.endpoint_plugins: acmserve`."""
    try:
        check_server()
    except EngineMismatch as mismatch:
        logger.error("acmserve is off: %s", mismatch)
        return NoEndpoint()
    from acmserve.server.app.session_endpoint import SessionEndpoint

    return SessionEndpoint()
