"""What a chat request says about a context map: the object `acm.map`, and `acm.query_finished` beside it.

    {"external_context_id": "corpus-7", "budget": 1024, "evolve_steps": 4, "placement": "tail", "wait": true,
     "sections": ["context_roadmap", "context_understanding"],
     "update": {"model": "big", "max_tokens": 1024, "vllm_xargs": {...}, "ground_truth": "388", "prompts": {...},
                "calls": 2, "evict": true}}

Pure: JSON values in, a frozen object out. JSON null means "not given". It does not know who keeps maps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from acmserve.context.maps.instructions import OURS, Instructions, parse_instructions
from acmserve.context.maps.map import MAX_BUDGET, MAX_EVOLVE_STEPS
from acmserve.context.maps.section import check_sections
from acmserve.context.maps.update import check_range
from acmserve.errors import InvalidRequest
from acmserve.plan.request import check_extra_args, check_session_id
from acmserve.validation import check_boolean, check_object, echo, echo_json

PLACEMENTS = ("tail", "head")
FINAL: Literal["final"] = "final"
QueryFinished = bool | Literal["final"]
"""Whether an answer ends its query. `FINAL`: it does where it has FINAL(...), whatever else it looks like."""
MAX_ANSWER_TOKENS = 16_384
MAX_TRUTH_CHARS = 8_000
_KEYS = ("external_context_id", "budget", "evolve_steps", "sections", "placement", "wait", "update")
_UPDATE_KEYS = ("model", "max_tokens", "vllm_xargs", "ground_truth", "prompts", "calls", "evict")
# They would make the update a request of a session.
_RESERVED_XARGS = ("session_id", "kv_transfer_params")


@dataclass(frozen=True, slots=True)
class UpdateOptions:
    """How the models that keep the map are asked. None: as the server's settings say.

    `ground_truth` is the right answer to the query, for the Distiller alone. `prompts` take the place of ours. With
    `num_calls` 1 one request does what Distiller and Cartographer do. A map that does not `evict` freezes when it is
    full.
    """

    model: str | None = None
    max_tokens: int | None = None
    vllm_xargs: Mapping[str, Any] = field(default_factory=dict)
    ground_truth: str | None = None
    prompts: Instructions = OURS
    num_calls: int = 2
    evicts: bool = True


DEFAULT_UPDATE = UpdateOptions()


@dataclass(frozen=True, slots=True)
class MapOptions:
    """`budget`, `evolve_steps` and `sections` are those of a map that is made now. None: the defaults, or its own.

    `placement` None leaves the choice to `placement_for`. With `wait` a request first waits for updates under way.
    """

    external_context_id: str
    budget: int | None = None
    evolve_steps: int | None = None
    placement: str | None = None
    update: UpdateOptions = DEFAULT_UPDATE
    wait: bool = False
    sections: tuple[str, ...] | None = None


NO_MAPS = "needs one owner for all sessions of a map, and here each session has its own among several API servers."
NO_MAPS_REMEDY = "Start the server without --api-server-count, or with --infer-sessions."


def parse_map_options(value: object) -> MapOptions | None:
    """Read `acm.map`. None for None. Raises InvalidRequest whose field is a dotted path, `acm.map.budget`."""
    if value is None:
        return None
    given = {key: given for key, given in check_object(value, "acm.map", _KEYS).items() if given is not None}
    if "external_context_id" not in given:
        raise InvalidRequest(
            "acm.map.external_context_id",
            "is missing.",
            "Name the external context: requests with one name share a map.",
        )
    placement = given.get("placement")
    if placement is not None and placement not in PLACEMENTS:
        raise InvalidRequest("acm.map.placement", f"does not know {echo(placement)}.", "Choose 'tail' or 'head'.")
    return MapOptions(
        external_context_id=check_session_id(given["external_context_id"], "acm.map.external_context_id"),
        budget=_integer(given, "budget", 1, MAX_BUDGET),
        evolve_steps=_integer(given, "evolve_steps", 0, MAX_EVOLVE_STEPS),
        placement=placement,
        update=_update(given.get("update")),
        wait=check_boolean(given.get("wait", False), "acm.map.wait"),
        sections=check_sections(given["sections"], "acm.map.sections") if "sections" in given else None,
    )


def parse_query_finished(value: object) -> QueryFinished | None:
    """Read `acm.query_finished`. None for None. Raises InvalidRequest."""
    if value is None or isinstance(value, bool):
        return value
    if value == FINAL:
        return FINAL
    raise InvalidRequest(
        "acm.query_finished",
        f"must be true, false or {FINAL!r}, not {echo_json(value)}.",
        f"Send {FINAL!r} with each request of a loop that ends with FINAL(...).",
    )


def placement_for(options: MapOptions, *, can_move: bool) -> str:
    """Where the map stands in a request.

    By default where an update computes least (measured in tests/server/maps/test_engine.py). That is the system message
    where the conversation behind the slot can be moved. Under `exact`, which would compute it again, it is in front of
    the question.
    """
    return options.placement or ("head" if can_move else "tail")


def _update(value: object) -> UpdateOptions:
    if value is None:
        return DEFAULT_UPDATE
    where = "acm.map.update"
    given = {key: given for key, given in check_object(value, where, _UPDATE_KEYS).items() if given is not None}
    model = given.get("model")
    if model is not None and (not isinstance(model, str) or not model):
        raise InvalidRequest(f"{where}.model", f"must be the name of a served model, not {echo(model)}.")
    xargs = given.get("vllm_xargs", {})
    if not isinstance(xargs, Mapping):
        raise InvalidRequest(f"{where}.vllm_xargs", f"must be an object, not {echo(xargs)}.")
    for name in _RESERVED_XARGS:
        if name in xargs:
            raise InvalidRequest(f"{where}.vllm_xargs.{name}", "is not allowed: an update belongs to no session.")
    check_extra_args(xargs, f"{where}.vllm_xargs")
    truth = given.get("ground_truth")
    if truth is not None and (not isinstance(truth, str) or len(truth) > MAX_TRUTH_CHARS):
        raise InvalidRequest(
            f"{where}.ground_truth", f"must be a text of at most {MAX_TRUTH_CHARS:,} characters, not {echo(truth)}."
        )
    prompts = parse_instructions(given["prompts"], f"{where}.prompts") if "prompts" in given else OURS
    if truth is not None and prompts.distiller is not None and "{ground_truth}" not in prompts.distiller:
        raise InvalidRequest(
            f"{where}.prompts.distiller", "has no {ground_truth}, which is given.", "Say in it where the answer stands."
        )
    num_calls = check_range(given.get("calls", 2), f"{where}.calls", 1, 2)
    if num_calls == 1 and prompts != OURS:
        raise InvalidRequest(f"{where}.prompts", "are for two models, and one call asks one.", "Leave out 'calls'.")
    most = _integer(given, "max_tokens", 1, MAX_ANSWER_TOKENS, where)
    evicts = check_boolean(given.get("evict", True), f"{where}.evict")
    return UpdateOptions(model, most, xargs, truth, prompts, num_calls, evicts)


def _integer(given: Mapping[str, Any], name: str, least: int, most: int, where: str = "acm.map") -> int | None:
    return check_range(given[name], f"{where}.{name}", least, most) if name in given else None
