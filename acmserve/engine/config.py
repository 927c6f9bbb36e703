"""How acmserve is switched on and tuned: the dictionary `kv_connector_extra_config`, validated.

A misspelt key or a value out of range raises `InvalidRequest` at engine start, never at the first request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from acmserve.errors import InvalidRequest
from acmserve.plan.auto import DEFAULT_THRESHOLDS, Thresholds
from acmserve.plan.calibration import DEFAULT, read_calibration
from acmserve.plan.planner import DEFAULT_MIN_MOVE_TOKENS
from acmserve.plan.request import check_fidelity
from acmserve.validation import unknown_key

CONNECTOR_NAME = "AcmConnector"
TIERED_CONNECTOR_NAME = "TieredConnector"  # takes its place where vLLM is told to offload KV
CONNECTOR_NAMES = (CONNECTOR_NAME, TIERED_CONNECTOR_NAME)
SERVER_SECTION = "context"  # settings of the server above, which the engine does not read
LASTING_REASONS = ("engine: ", "model: ", "kv cache: ", "precompute: ", "scheduler: ")
"""How a `fallback_reason` begins that every later background request of the engine would have, too."""
MOVE_REFUSAL_CALL = "acm_move_refusal"  # a worker answers it: why it moves no KV, None where it does
_MIB = 2**20
_MAY_BE_0 = ("num_threads", "keep_tail", "max_boundary_mib")
_LARGEST = {
    "precompute_max_pool_share": 1.0,
    "precompute_min_age_s": 86_400.0,
    "precompute_quiet_s": 3_600.0,
    "precompute_chunk_s": 3_600.0,
    "precompute_delay_share": 1.0,
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine.

    `default_fidelity` answers session requests that name none. `max_sessions`, `max_sources_per_session` and
    `max_source_mib` bound what is remembered (token ids and hashes on the host, no KV). Matches shorter than
    `min_move_tokens` are computed. `keep_tail` keeps the end of a sequence reusable: its last partial block, what it
    holds of its windows, and the states of recurrent layers.
    `num_threads` copies KV with that many threads (0: as many as the engine computes with). On hybrid models, what is
    kept of one prompt for later edits has at most `max_boundary_mib` (0: none is kept). It has at most a quarter of the
    KV blocks, too. `calibration` is a file of `acmserve calibrate`: how bold `auto` is on this model (empty: as on
    ours).

    Background requests (`precompute` in a request's params) begin when nobody else was there for `precompute_quiet_s`
    seconds, and compute at most `precompute_chunk_tokens` in one step. At the rate of the step before, a step takes no
    more than `precompute_chunk_s` seconds for them: nobody waits longer. What they compute holds at most the share
    `precompute_max_pool_share` of the KV blocks (0: nothing is precomputed). It takes the place of nobody's KV that was
    in use in the last `precompute_min_age_s` seconds. All that others wait for background requests is at most
    `precompute_delay_share` of the time to their own first tokens (1: not paced at all). What long silences lend is
    added.

    While a draft (`draft` in a request's params) is decoded, the prefill of its session goes on in chunks. A chunk has
    `draft_chunk_tokens`, or more where the draft ends sooner.
    """

    default_fidelity: str = "exact"
    max_sessions: int = 1024
    max_sources_per_session: int = 8
    max_source_mib: int = 256
    min_move_tokens: int = DEFAULT_MIN_MOVE_TOKENS
    keep_tail: bool = True
    num_threads: int = 0
    max_boundary_mib: int = 1024
    calibration: str = ""
    precompute_chunk_tokens: int = 256
    precompute_chunk_s: float = 0.2
    precompute_quiet_s: float = 0.05
    precompute_max_pool_share: float = 0.2
    precompute_min_age_s: float = 60.0
    draft_chunk_tokens: int = 64
    precompute_delay_share: float = 0.02

    @classmethod
    def parse(cls, extra: Mapping[str, Any]) -> EngineConfig:
        """Read `kv_connector_extra_config`. Raises `InvalidRequest` naming the key."""
        where = "kv_connector_extra_config"
        known = {field.name: field for field in fields(cls)}
        extra = {key: value for key, value in extra.items() if key != SERVER_SECTION}
        for key in extra:
            if key not in known:
                raise InvalidRequest(f"{where}.{key}", unknown_key(key, known, f"known are {', '.join(known)}"))
            default = known[key].default
            if isinstance(default, float) and type(extra[key]) is int:
                extra[key] = float(extra[key])
            value = extra[key]
            if type(value) is not type(default):
                raise InvalidRequest(f"{where}.{key}", f"must be {type(default).__name__}, not {value!r}")
            if isinstance(value, int) and value < (0 if key in _MAY_BE_0 else 1):
                raise InvalidRequest(f"{where}.{key}", f"must be positive, not {value}")
            if isinstance(value, float) and not 0 <= value <= _LARGEST[key]:
                raise InvalidRequest(f"{where}.{key}", f"must lie between 0 and {_LARGEST[key]:g}, not {value}")
        config = cls(**extra)
        check_fidelity(config.default_fidelity, f"{where}.default_fidelity")
        return config

    @property
    def max_source_bytes(self) -> int:
        return self.max_source_mib * _MIB

    @property
    def max_boundary_bytes(self) -> int:
        return self.max_boundary_mib * _MIB

    @property
    def level(self) -> str:
        """The name of the level that `thresholds` has. Raises `AcmError` for a calibration that cannot be read."""
        return read_calibration(self.calibration, "calibration").level if self.calibration else DEFAULT

    def thresholds(self, model: Mapping[str, Any]) -> Thresholds | None:
        """How bold `auto` is on a model, given by its Hugging Face configuration. None: it moves nothing.

        Raises `AcmError` for a calibration that cannot be read, or was measured on another model.
        """
        if not self.calibration:
            return DEFAULT_THRESHOLDS
        found = read_calibration(self.calibration, "calibration")
        found.check_model(model, f"calibration {self.calibration}")
        return found.thresholds


def engine_config(**settings: Any) -> dict[str, Any]:
    """Keyword arguments that switch acmserve on: `vllm.LLM(model, **acmserve.engine_config())`.

    `settings` are the fields of `EngineConfig`, for instance `default_fidelity="reuse"`.
    """
    chosen = asdict(EngineConfig.parse(settings))
    extra = {key: chosen[key] for key in settings}
    return {
        "kv_transfer_config": {
            "kv_connector": CONNECTOR_NAME,
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }
    }
