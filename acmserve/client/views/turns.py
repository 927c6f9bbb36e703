"""What turns cost: each of the last ones of a session, all of them together, and those of many sessions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from acmserve.client.receipts import PromptReceipt

HowEnded = Literal["answered", "aborted", "failed"]


@dataclass(frozen=True, slots=True)
class RecordedEdit:
    """An edit that was made since the turn before."""

    kind: str
    fragment_ids: tuple[str, ...]
    tokens_saved: int
    by: Literal["model", "caller"]


@dataclass(frozen=True, slots=True)
class RecordedEviction:
    """An eviction that a turn was the first to see."""

    kind: Literal["budget", "context_management", "caller"]
    name: str
    tokens: int
    levels: dict[str, int]


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One request to the engine. `branch` is the call that opened the branch in which the model worked."""

    index: int
    created_at: float
    route: str
    step: int | None
    purpose: Literal["answer", "summary"]
    branch: str | None
    request_id: str
    end: HowEnded
    receipt: PromptReceipt | None
    edits: tuple[RecordedEdit, ...]
    evictions: tuple[RecordedEviction, ...]
    prompt_tokens: int
    output_tokens: int
    budget_tokens: int | None
    ttft_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True)
class WaitingRecords:
    """What was edited and evicted since the last turn. The next one will name it."""

    edits: tuple[RecordedEdit, ...]
    evictions: tuple[RecordedEviction, ...]


@dataclass(frozen=True, slots=True)
class TurnsPage:
    """A page of turns, the newest one last. The next page begins behind `last_index`."""

    data: tuple[RecordedTurn, ...]
    first_index: int | None
    last_index: int | None
    has_more: bool
    num_turns: int
    oldest_index: int | None
    waiting: WaitingRecords
    object: Literal["list"] = "list"


@dataclass(frozen=True, slots=True)
class TurnSums:
    """Sums over all turns of a session. Kept, moved and computed tokens add up to those of the prompts."""

    turns: int
    turns_without_receipt: int
    prompt_tokens: int
    kept_tokens: int
    moved_tokens: int
    computed_tokens: int
    precomputed_tokens: int
    loaded_tokens: int
    repaired_tokens: int
    output_tokens: int
    evicted_tokens: int
    edits: int
    evictions: int
    fallbacks: int
    background_tokens: int


@dataclass(frozen=True, slots=True)
class PricesOfServer:
    """What tokens cost on this server. `write`, `read` and `output` are multiples of `input`."""

    currency: str
    input: float
    write: float
    read: float
    output: float


@dataclass(frozen=True, slots=True)
class SavingsEstimate:
    """How savings are estimated. Rates are in tokens a second."""

    method: str
    prefill_rate: float
    move_rate: float
    rates: Literal["measured", "assumed"]
    prices: PricesOfServer


@dataclass(frozen=True, slots=True)
class SavedAgainstStock:
    """What was saved against stock vLLM, asked for the same prompts."""

    tokens: int
    seconds: float
    money: float
    cost: float
    stock_cost: float
    estimate: SavingsEstimate


@dataclass(frozen=True, slots=True)
class JudgedHarm:
    """What moved KV did to a session's answers under one fidelity, in nats a token. `upper` is a bound of it."""

    fidelity: str
    nats: float
    upper: float | None
    tokens: int
    answers: int


@dataclass(frozen=True, slots=True)
class SessionTotals(TurnSums):
    """The sums of one session, and what that saved. `auto_level` is how bold `auto` is in the next turn."""

    session_id: str
    saved: SavedAgainstStock
    harm: tuple[JudgedHarm, ...]
    auto_level: str


@dataclass(frozen=True, slots=True)
class NewestTurn:
    """The newest turn of a session. `fallback_reason` says why a move was refused."""

    index: int
    created_at: float
    end: HowEnded
    prompt_tokens: int
    computed_tokens: int | None
    fallback_reason: str | None
    ttft_s: float | None


@dataclass(frozen=True, slots=True)
class UsageOfSession:
    """What one session cost so far, and whether it works now."""

    session_id: str
    branch_of: str | None
    thread_of: str | None
    created_at: float
    used_at: float
    num_messages: int
    num_hidden_fragments: int
    running: bool
    precomputing: bool
    budget_tokens: int | None
    last_turn: NewestTurn | None
    totals: TurnSums


@dataclass(frozen=True, slots=True)
class UsagePage:
    """What the sessions used last cost so far. Sessions that are only in the server's file are not among them."""

    data: tuple[UsageOfSession, ...]
    has_more: bool
    num_sessions: int
    object: Literal["list"] = "list"
