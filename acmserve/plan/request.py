"""What a request says about its session: which session, and how faithful the reuse has to be.

One set of rules for both doors. The server reads the values from HTTP (`acmserve.server.options.session_params`), an
embedding program puts them into `SamplingParams.extra_args["kv_transfer_params"]["acm"]`. Both end in the same frozen
`SessionParams`. It does not know HTTP, headers or the engine. It never repairs a value: an answer under a guessed
session would be an answer out of somebody else's cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from acmserve.errors import InvalidRequest
from acmserve.plan.calibration import LEVELS
from acmserve.plan.repair import Repair, Span
from acmserve.validation import check_boolean, check_object, echo, listing, short_ascii

FIDELITIES = ("exact", "reuse", "repair", "auto")
REPAIRING = ("repair", "auto")
MAX_SESSION_ID_CHARS = 256
MAX_FOLDABLE = 512
"""Pieces that one request may name: a boundary is planned for each, and every other request waits for that."""
MAX_POSITION = 2**31 - 1
OWN_PREFIX = "acm_"
"""Keys of `SamplingParams.extra_args` that begin so are said by the server to the engine, and by no client."""
SCORED_TOKENS = f"{OWN_PREFIX}scored_tokens"
"""Key of `SamplingParams.extra_args`: of how many tokens at a prompt's end the log probabilities are wanted."""


@dataclass(frozen=True, slots=True)
class SessionParams:
    """A validated session request. `fidelity` None means the default of the engine.

    `repair` goes with the fidelities `repair` and `auto` only, None means the default repair.
    `forget` makes the engine let go of everything that the session was served, before it plans this request: how a
    redaction reaches the KV cache. `precompute` makes it a background request, whose prompt is a context that may be
    asked for later. The engine computes it, exactly, in moments in which nobody else is served. `account` is whose
    share of the engine's memory of sources the session counts for. The server sets it, and takes none from a client.
    `unrecorded` requests find what the session was served, and become no source themselves: the conversation goes on
    from where it was. `foldable` are the pieces of the prompt that a later edit may take out, as spans of tokens.
    Hybrid models keep what such an edit needs. On others the field changes nothing. `level`, which the server sets,
    too, is how bold `auto` is. None: as the calibration of the engine says. A `draft` is verified before anybody sees
    it. It becomes no source and counts in no metric. While it is decoded, the prefill of its session's other requests
    goes on in chunks that let it. `speculate` asks the server for such a draft, None for its default. The engine does
    not know that wish.
    """

    session_id: str
    fidelity: str | None = None
    forget: bool = False
    precompute: bool = False
    repair: Repair | None = None
    account: str = ""
    unrecorded: bool = False
    foldable: tuple[Span, ...] = ()
    level: str | None = None
    draft: bool = False
    speculate: bool | None = None

    def as_acm(self) -> dict[str, Any]:
        """The value of `kv_transfer_params["acm"]` that carries these values to the engine."""
        acm: dict[str, Any] = {"session_id": self.session_id}
        if self.fidelity is not None:
            acm["fidelity"] = self.fidelity
        if self.repair is not None:
            acm["repair"] = asdict(self.repair) | {"ranges": [list(span) for span in self.repair.ranges]}
        if self.forget:
            acm["forget"] = True
        if self.precompute:
            acm["precompute"] = True
        if self.account:
            acm["account"] = self.account
        if self.unrecorded:
            acm["unrecorded"] = True
        if self.foldable:
            acm["foldable"] = [list(span) for span in self.foldable]
        if self.level is not None:
            acm["level"] = self.level
        if self.draft:
            acm["draft"] = True
        return acm


def acm_of(params: object) -> Any:
    """What vLLM's sampling or pooling parameters say of a session, unchecked. None where they say nothing."""
    extra_args = getattr(params, "extra_args", None) or {}
    transfer = extra_args.get("kv_transfer_params")
    return transfer.get("acm") if isinstance(transfer, dict) else None


def is_background(params: object) -> bool:
    """Whether such parameters say that their request computes in advance. Nothing of it is checked yet."""
    acm = acm_of(params)
    return isinstance(acm, dict) and acm.get("precompute") is True


def check_extra_args(names: Iterable[str], field: str) -> None:
    """Raise InvalidRequest where a client names an argument that only the server may set."""
    for name in names:
        if name.startswith(OWN_PREFIX):
            own = f"names that begin with '{OWN_PREFIX}' are acmserve's own."
            raise InvalidRequest(f"{field}.{short_ascii(name)}", f"cannot be sent: {own}", "Leave it out.")


def parse_acm_params(value: object, field: str = "kv_transfer_params.acm") -> SessionParams:
    """Validate an engine-level `acm` object, with the keys that `SessionParams` has.

    All but the session id may be missing. Raises InvalidRequest with the dotted path below `field`.
    """
    known = [known.name for known in fields(SessionParams) if known.name != "speculate"]
    acm = check_object(value, field, known=known)
    if acm.get("session_id") is None:
        raise InvalidRequest(f"{field}.session_id", "is missing; name the session that the request belongs to")
    params = SessionParams(
        check_session_id(acm["session_id"], f"{field}.session_id"),
        check_fidelity(acm.get("fidelity"), f"{field}.fidelity"),
        _check_flag(acm.get("forget"), f"{field}.forget"),
        _check_flag(acm.get("precompute"), f"{field}.precompute"),
        check_repair(acm.get("repair"), f"{field}.repair"),
        "" if acm.get("account") is None else check_session_id(acm["account"], f"{field}.account"),
        _check_flag(acm.get("unrecorded"), f"{field}.unrecorded"),
        check_foldable(acm.get("foldable"), f"{field}.foldable"),
        level=_check_level(acm.get("level"), f"{field}.level"),
        draft=_check_flag(acm.get("draft"), f"{field}.draft"),
    )
    check_may_repair(params.fidelity, params.repair, f"{field}.repair")
    if params.precompute and params.fidelity not in (None, "exact"):
        raise InvalidRequest(f"{field}.fidelity", "what is precomputed is exact; leave it out or say 'exact'")
    if params.precompute and params.forget:
        raise InvalidRequest(
            f"{field}.precompute", "cannot go with forget, which takes effect at once; send two requests"
        )
    if params.draft and (params.forget or params.precompute):
        other = "forget" if params.forget else "precompute"
        raise InvalidRequest(f"{field}.draft", f"cannot go with {other}: a draft leaves nothing behind; leave one out")
    return params


def check_session_id(value: object, field: str) -> str:
    """Return `value` when it is 1 to 256 characters of Unicode text, else raise InvalidRequest."""
    if not isinstance(value, str):
        raise InvalidRequest(field, f"must be a string, not {echo(value)}")
    if not value:
        raise InvalidRequest(field, "is empty; name the session, or leave it out for a request without session")
    if len(value) > MAX_SESSION_ID_CHARS:
        raise InvalidRequest(field, f"has {len(value)} characters; at most {MAX_SESSION_ID_CHARS} are allowed")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(field, f"is not valid Unicode text: {echo(value)}") from None
    return value


def check_fidelity(value: object, field: str) -> str | None:
    """Return `value` when it is a known fidelity, None for None (the engine's default), else raise InvalidRequest."""
    if value is None:
        return None
    if not isinstance(value, str) or value not in FIDELITIES:
        raise InvalidRequest(field, f"unknown fidelity {echo(value)}; choose {listing(FIDELITIES)}")
    return value


def _check_level(value: object, field: str) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value not in LEVELS:
        raise InvalidRequest(field, f"unknown level {echo(value)}; choose {listing(list(LEVELS))}")
    return value


def check_repair(value: object, field: str) -> Repair | None:
    """Return what an object `repair` says, None for None (the default repair), else raise InvalidRequest."""
    if value is None:
        return None
    given = check_object(value, field, known=[known.name for known in fields(Repair)])
    values: dict[str, Any] = {name: given[name] for name in given if given[name] is not None}
    for name in ("head_tokens", "tail_tokens", "rest_tokens"):
        if type(values.get(name, 0)) is not int:
            raise InvalidRequest(f"{field}.{name}", f"must be a whole number of tokens, not {echo(values[name])}")
    check_boolean(values.get("echoes", False), f"{field}.echoes")
    if "ranges" in values:
        values["ranges"] = _spans(values["ranges"], f"{field}.ranges")
    try:
        return Repair(**values)
    except InvalidRequest as invalid:
        raise InvalidRequest(f"{field}.{invalid.field}", invalid.message) from None


def check_foldable(value: object, field: str) -> tuple[Span, ...]:
    """Return the spans of a list `[[start, end], ...]`, none for None, else raise InvalidRequest.

    Spans may overlap and come in any order. Those behind the prompt's end mean nothing.
    """
    if value is None:
        return ()
    spans = _spans(value, field)
    if len(spans) > MAX_FOLDABLE:
        raise InvalidRequest(field, f"has {len(spans)} pieces; at most {MAX_FOLDABLE} are allowed, name the largest")
    for index, (start, end) in enumerate(spans):
        if not 0 <= start < end <= MAX_POSITION:
            raise InvalidRequest(
                f"{field}.{index}", f"must be [start, end) with 0 <= start < end, not [{start}, {end})"
            )
    return spans


def _spans(value: object, field: str) -> tuple[tuple[int, int], ...]:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(field, f"must be a list of [start, end) of the prompt, in tokens, not {echo(value)}")
    for index, span in enumerate(value):
        if not isinstance(span, list | tuple) or len(span) != 2 or any(type(n) is not int for n in span):
            raise InvalidRequest(f"{field}.{index}", f"must be two whole numbers, [start, end), not {echo(span)}")
    return tuple((start, end) for start, end in value)


def check_may_repair(fidelity: str | None, repair: Repair | None, field: str) -> None:
    """Raise InvalidRequest when a repair is asked for together with a fidelity that repairs nothing."""
    if repair is not None and fidelity not in REPAIRING:
        given = "no fidelity" if fidelity is None else f"fidelity '{fidelity}'"
        raise InvalidRequest(field, f"goes with fidelity {listing(REPAIRING)}, not with {given}; send one of them")


def _check_flag(value: object, field: str) -> bool:
    """Booleans only, None for "not given": a redaction that was misread must not look like one that was done."""
    return value is not None and check_boolean(value, field)
