"""What `acmserve serve` precomputes where nobody says it: one decision, with its reason.

    --precompute MODE, or `precompute` in the section `context`    that, everywhere
    a CPU, one engine, one API server, `exact` by default          `exact`: what `bench precompute` measured
    anything else                                                  `off`: nobody has measured what it costs there

Measured were turns under `exact`. So the default precomputes behind such turns alone.
Nothing is healed by default, and no answer is judged: what that costs a turn with moved KV was never timed.

Decision: the rule is that of this command. `vllm serve` with the connector keeps `off`, since its command line is
vLLM's, and nothing of it is filled in by us. It takes the same mode in its configuration.
It reads no environment and prints nothing. Whether a model's KV can be precomputed, the engine says.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from acmserve.engine.config import SERVER_SECTION, EngineConfig
from acmserve.server.options.config import ContextConfig

MEASURED = "exact"
"""The mode whose edits `bench precompute` measured."""
SETTING = "precompute"
_SHARE = "precompute_max_pool_share"


@dataclass(frozen=True, slots=True)
class PrecomputePlace:
    """Where a server computes. `fidelity` is that of requests which name none."""

    on_cpu: bool
    num_engines: int = 1
    num_api_servers: int = 1
    has_tier: bool = False
    fidelity: str = "exact"


@dataclass(frozen=True, slots=True)
class PrecomputeDefault:
    """The mode where nobody says one, and why."""

    mode: str
    reason: str

    def __str__(self) -> str:
        """One line: what it does, why, and how it is said otherwise."""
        if self.mode == "off":
            return f"nothing is precomputed: {self.reason}; --precompute {MEASURED} turns it on"
        return f"between two turns the next context is precomputed: {self.reason}; --precompute off turns it off"


def plan_default_precompute(place: PrecomputePlace) -> PrecomputeDefault:
    """The mode that holds in such a place where nobody says one. Pure."""
    elsewhere = {
        "on a GPU": not place.on_cpu,
        f"with {place.num_engines} engines": place.num_engines > 1,
        f"with {place.num_api_servers} API servers": place.num_api_servers > 1,
        "with a tier of host memory": place.has_tier,
        f"under --fidelity {place.fidelity}": place.fidelity != "exact",
    }
    where = next((name for name, holds in elsewhere.items() if holds), None)
    if where is not None:
        return PrecomputeDefault("off", f"what it costs {where} was not measured")
    return PrecomputeDefault(MEASURED, "on a CPU all waiting under exact was measured to be shorter")


def settle_default_precompute(args: Namespace, on_cpu: bool, say: Callable[[str], None]) -> None:
    """Fill the default into the connector's configuration, where nobody has said a mode or a share of 0, and say it.

    `args` are those that vLLM has read, with `settle_api_servers` behind them. Raises `InvalidRequest`.
    """
    extra: dict[str, Any] = args.kv_transfer_config.kv_connector_extra_config
    config, engine = ContextConfig.parse(extra), EngineConfig.parse(extra)
    if args.headless or config.precompute or extra.get(_SHARE) == 0:
        return
    found = plan_default_precompute(
        PrecomputePlace(
            on_cpu,
            num_engines=args.data_parallel_size,
            num_api_servers=args.api_server_count or 1,
            has_tier=bool(getattr(args, "kv_offloading_size", None)),
            fidelity=engine.default_fidelity,
        )
    )
    say(str(found))
    if found.mode != "off":
        section: Mapping[str, Any] = extra.get(SERVER_SECTION, {})
        extra[SERVER_SECTION] = {**section, SETTING: found.mode}
