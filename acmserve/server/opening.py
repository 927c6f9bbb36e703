"""Opens the sessions of a server at its start: from the settings to a `Sessions` object in the app's state.

The one place where the parts meet: settings, the SQLite archive, the served tokenizer, who summarizes, who embeds.
"""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from starlette.datastructures import State
from vllm import envs
from vllm.engine.protocol import EngineClient

from acmserve.context.archive import Archive
from acmserve.context.session import Session, SessionLimits
from acmserve.context.store import SessionStore
from acmserve.engine.config import EngineConfig
from acmserve.server.config import ContextConfig
from acmserve.server.embedder import parse_embedder
from acmserve.server.served import ServedContexts
from acmserve.server.sessions import Sessions
from acmserve.server.summarizer import open_summarizer
from acmserve.server.tokenizer import ServedTokenizer


def open_sessions(engine_client: EngineClient, state: State, args: Namespace) -> Sessions:
    """The sessions of this server. Raises AcmError where a setting or the data folder is wrong."""
    extra: dict[str, Any] = args.kv_transfer_config.kv_connector_extra_config
    config = ContextConfig.parse(extra)
    tokenizer = engine_client.renderer.get_tokenizer()
    served = ServedContexts(tokenizer)

    def drop(session: Session) -> None:
        served.drop(session.tenant, session.session_id)

    limits = SessionLimits(config.max_sessions, config.max_session_mib * 2**20, config.session_hours * 3600)
    archive = Archive(Path(config.data_dir)) if config.data_dir else None
    return Sessions(
        SessionStore(limits, archive, drop),
        ServedTokenizer(tokenizer),
        open_summarizer(config, state),
        parse_embedder(config.embedder),
        served,
        default_fidelity=EngineConfig.parse(extra).default_fidelity,
        max_tool_calls=config.max_tool_calls,
        has_api_keys=bool([key for key in (args.api_key or [envs.VLLM_API_KEY]) if key]),
    )
