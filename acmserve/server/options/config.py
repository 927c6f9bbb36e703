"""Settings of the context layer on a server: the section `context` of `kv_connector_extra_config`, validated at start.

    acmserve serve --data-dir D --session-hours 24 ...      fills that section from flags
    vllm serve --kv-transfer-config '{... "kv_connector_extra_config": {"context": {"data_dir": "D"}}}'

One door for both, so a plain vLLM server takes the same settings. The engine does not read the section.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from acmserve.context.session.precompute_options import PrecomputeOptions, parse_precompute
from acmserve.context.storage.session import SessionLimits
from acmserve.context.transcript.observations import AUTO, ObservationRule, parse_observations
from acmserve.engine.config import SERVER_SECTION
from acmserve.errors import InvalidRequest
from acmserve.server.exchange.events import check_format
from acmserve.server.options.base_url import check_base_url, check_embedder_url
from acmserve.server.options.harm import check_boldest, parse_harm
from acmserve.server.options.loop_options import check_most_tool_calls
from acmserve.server.options.prices import TokenPrices, parse_prices
from acmserve.server.options.session_from import parse_sources
from acmserve.validation import unknown_key


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """Settings of sessions, summaries and search.

    `data_dir`: folder for the sessions' SQLite file ("": sessions live as long as the server). `max_session_mib` bounds
    all transcripts in memory, `max_stored_sessions` and `max_stored_mib` bound the file. `session_hours` is how long an
    unused session is kept. `summary_model` names the served model (or LoRA adapter) that writes summaries ("": the one
    of the request). `summary_url` an OpenAI-compatible server that does it instead. `embedder`: "" (none), the base URL
    of an OpenAI-compatible server, optionally followed by `#model`, or `model2vec:FOLDER`. `map_model` and `map_url`
    name in the same way who keeps context maps. `max_map_tokens` bounds each of its answers. `budget` is that of every
    session which has none of its own: tokens ("80k", "50%"), or a JSON object like `acm.budget`. "": none.
    `precompute`, a mode or a JSON object like `acm.precompute`, is that of every session without one. "": off.
    `eviction_policy` names policies of other packages as `module:Class`, with commas between them.
    `observations` says which messages of the user are results (`acm.observations`), "" for auto.
    `share_prefixes` lets API keys find each other's prefixes in the prefix cache. `session_from` names the places of a
    request where a session id may stand, in order, with commas between them ("": all that are known).
    `speculate` drafts exact answers behind an edit (`acm.speculate`).
    `infer_sessions` finds the session of a request without an id by its content. `rollout` records every session
    for training (`acm.rollout`). `log_format` is that of acmserve's own lines in the log. `suite` names files with
    tool suites of the deployment, with commas between them. `prices` is a JSON object, what tokens cost, for the
    estimate of what a session saved. "": the ratios of vendors. `harm` is a mode of `options.harm`, "" for the default.
    `boldest` is the boldest level that `auto` may learn, "" the calibrated one.
    """

    data_dir: str = ""
    max_sessions: int = 1024
    max_session_mib: int = 256
    max_stored_sessions: int = 4096
    max_stored_mib: int = 4096
    session_hours: float = 168.0
    max_tool_calls: int = 20
    max_summary_tokens: int = 256
    summary_model: str = ""
    summary_url: str = ""
    embedder: str = ""
    max_map_tokens: int = 1024
    map_model: str = ""
    map_url: str = ""
    budget: str = ""
    eviction_policy: str = ""
    precompute: str = ""
    observations: str = ""
    share_prefixes: bool = False
    session_from: str = ""
    infer_sessions: bool = False
    speculate: bool = False
    rollout: bool = False
    suite: str = ""
    log_format: str = "text"
    prices: str = ""
    harm: str = ""
    boldest: str = ""

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> ContextConfig:
        """Read the section out of `kv_connector_extra_config`. Raises `InvalidRequest` naming the key or the flag."""
        where = f"kv_connector_extra_config.{SERVER_SECTION}"
        section = extra.get(SERVER_SECTION, {})
        if not isinstance(section, Mapping):
            raise InvalidRequest(where, f"must be an object, not {section!r}")
        known = {field.name: field for field in fields(cls)}
        values: dict[str, Any] = {}
        for key, given in section.items():
            if key not in known:
                raise InvalidRequest(f"{where}.{key}", unknown_key(key, known, f"known are {', '.join(known)}"))
            kind = type(known[key].default)
            value: Any = float(given) if kind is float and type(given) is int else given
            if type(value) is not kind:
                raise InvalidRequest(f"{where}.{key}", f"must be {kind.__name__}, not {value!r}")
            if kind is not bool and isinstance(value, int | float) and value <= 0:
                raise InvalidRequest(f"{where}.{key}", f"must be positive, not {value}")
            values[key] = value
        config = cls(**values)
        parse_sources(config.session_from)
        check_format(config.log_format)
        parse_harm(config.harm)
        check_boldest(config.boldest)
        check_most_tool_calls(config.max_tool_calls)
        check_embedder_url(config.embedder)
        for url, flag in ((config.summary_url, "--summary-url"), (config.map_url, "--map-url")):
            if url:
                check_base_url(url, flag)
        return config

    @property
    def session_limits(self) -> SessionLimits:
        """The bounds on sessions."""
        return SessionLimits(
            self.max_sessions,
            self.max_session_mib * 2**20,
            self.session_hours * 3600,
            self.max_stored_sessions,
            self.max_stored_mib * 2**20,
        )

    @property
    def precompute_options(self) -> PrecomputeOptions | None:
        """What `precompute` writes, None where it is not given. Raises `InvalidRequest`."""
        return (
            parse_precompute(flag_value(self.precompute, "--precompute"), "--precompute") if self.precompute else None
        )

    @property
    def token_prices(self) -> TokenPrices:
        """What `prices` writes. Raises `InvalidRequest`."""
        return parse_prices(flag_value(self.prices, "--prices")) if self.prices else TokenPrices()

    @property
    def observation_rule(self) -> ObservationRule:
        """What `observations` writes. Raises `InvalidRequest`."""
        flag = "--observations"
        return parse_observations(flag_value(self.observations, flag), flag) if self.observations else AUTO


def flag_value(text: str, flag: str) -> object:
    """A flag as JSON where it is an object or a list, else its text. Raises `InvalidRequest`."""
    if not text.lstrip().startswith(("{", "[")):
        return text
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(flag, f"is no JSON object: {error}.") from None
