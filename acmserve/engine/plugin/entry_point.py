"""Entry point of vLLM's general plugins: puts the seams in place in every vLLM process, or stays off and says why."""

from __future__ import annotations

import logging

from acmserve.engine.config import CONNECTOR_NAME, TIERED_CONNECTOR_NAME
from acmserve.errors import EngineMismatch

logger = logging.getLogger(__name__)


def register() -> None:
    """Called by vLLM at start in the API server, the engine core and every worker."""
    from acmserve.engine.vllm.version import check_engine

    try:
        check_engine()
    except EngineMismatch as mismatch:
        logger.error("acmserve is off: %s", mismatch)
        return
    from acmserve.engine.requests.session_rank import place_request
    from acmserve.engine.vllm.install import install

    modules = {
        CONNECTOR_NAME: "acmserve.engine.plugin.connector",
        TIERED_CONNECTOR_NAME: "acmserve.engine.plugin.tiered_connector",
    }
    install(modules, place_request)
