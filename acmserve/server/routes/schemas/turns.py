"""What the routes of a session's turns and totals give, as pydantic models. Part of the OpenAPI document."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from acmserve.server.routes.schemas.receipts import ReceiptView


class TurnEditView(BaseModel):
    """An edit that was made since the turn before. Under `acm.commit: cheapest` it may take effect in a later one."""

    kind: str = Field(
        description="`fold`, `restore`, `summarize`, `redact`, or the operation of a context tool. Of branches: "
        "`branch`, `return`, `branch_failed`."
    )
    fragment_ids: list[str] = Field(description="The fragments. Of very many the first ones.")
    tokens_saved: int = Field(description="Tokens that the prompt has fewer, below 0 where it has more.")
    by: Literal["model", "caller"] = Field(description="Who asked for it.")


class TurnEvictionView(BaseModel):
    """An eviction that the turn was the first to see."""

    kind: Literal["budget", "context_management", "caller"] = Field(
        description="What demanded it: a budget, edits of the request, or `POST .../evict`."
    )
    name: str = Field(description="The policy, or the type of the edit.")
    tokens: int = Field(ge=0, description="Tokens that the prompt has fewer.")
    levels: dict[str, int] = Field(description="Of a policy: the tokens of each level.")


class TurnView(BaseModel):
    """One request to the engine. A tool loop on the server makes one for each step. It holds no text."""

    index: int = Field(ge=0, description="Counts from the session's first turn.")
    created_at: float = Field(description="When it was sent to the engine, in seconds since the epoch.")
    route: str = Field(description="The path of the request.")
    step: int | None = Field(description="The step of a tool loop. Null elsewhere.")
    purpose: Literal["answer", "summary"] = Field(description="`summary`: read by the server alone.")
    branch: str | None = Field(
        description="The call that opened the branch in which the model worked. Null in the main conversation."
    )
    request_id: str = Field(description="vLLM's id of the request.")
    end: Literal["answered", "aborted", "failed"] = Field(
        description="`aborted`: the client left. `failed`: the engine refused the request, or broke off."
    )
    receipt: ReceiptView | None = Field(description="Null where the engine said none before the turn ended.")
    edits: list[TurnEditView] = Field(description="Those that were made since the turn before.")
    evictions: list[TurnEvictionView] = Field(description="Those that this turn was the first to see.")
    prompt_tokens: int = Field(ge=0, description="0 where the prompt is not known.")
    output_tokens: int = Field(ge=0, description="Tokens that were sampled.")
    budget_tokens: int | None = Field(description="The `max_tokens` of the budget that held.")
    ttft_s: float | None = Field(description="Seconds to the first token. Null where nobody knows them.")
    total_s: float = Field(ge=0, description="Seconds in which the engine worked on the request.")


class WaitingNotes(BaseModel):
    """What was edited and evicted since the last turn. The next turn will name it."""

    edits: list[TurnEditView] = Field(description="In the order in which they were made.")
    evictions: list[TurnEvictionView] = Field(description="Those that callers asked for.")


class TurnList(BaseModel):
    """A page of turns, in order."""

    object: Literal["list"] = Field(default="list", description="Always `list`.")
    data: list[TurnView] = Field(description="The newest one is the last.")
    first_index: int | None = Field(description="Of this page.")
    last_index: int | None = Field(description="Of this page. The next page begins behind it: `after`.")
    has_more: bool = Field(description="Whether newer turns follow.")
    num_turns: int = Field(ge=0, description="Turns of the session so far.")
    oldest_index: int | None = Field(description="Of the oldest turn that is left. Null where none is.")
    waiting: WaitingNotes = Field(description="What the next turn will name.")


class PricesView(BaseModel):
    """The setting `prices` of the server."""

    currency: str = Field(description="The unit of `money` and `cost`.")
    input: float = Field(ge=0, description="The price of one input token.")
    write: float = Field(ge=0, description="Of a token that is computed, as a multiple of `input`.")
    read: float = Field(ge=0, description="Of a token that is found in the cache, as a multiple of `input`.")
    output: float = Field(ge=0, description="Of a token of an answer, as a multiple of `input`.")


class EstimateView(BaseModel):
    """How savings are estimated."""

    method: str = Field(description="In words.")
    prefill_rate: float = Field(ge=0, description="Tokens a second.")
    move_rate: float = Field(ge=0, description="Tokens a second.")
    rates: Literal["measured", "assumed"] = Field(
        description="`measured`: on this server, since it started. `assumed`: no long prefill was measured yet."
    )
    prices: PricesView = Field(description="What tokens cost here.")


class SavingsView(BaseModel):
    """What was saved against stock vLLM, asked for the same prompts."""

    tokens: int = Field(ge=0, description="Neither computed by a request nor found by a stock prefix cache.")
    seconds: float = Field(description="Seconds that clients did not wait for prefill.")
    money: float = Field(description="`stock_cost` less `cost`.")
    cost: float = Field(ge=0, description="What the session's tokens cost, by `prices`.")
    stock_cost: float = Field(ge=0, description="What they would have cost.")
    estimate: EstimateView = Field(description="How `seconds` and `money` come about.")


class HarmView(BaseModel):
    """What moved KV did to the session's answers under one fidelity, judged in idle time."""

    fidelity: str = Field(description="What the turns asked for: reuse, repair or auto.")
    nats: float = Field(
        description="Mean of exp(-r) - 1 + r over sampled tokens, r = log p(token | moved KV) - log p(token | exact)."
    )
    upper: float | None = Field(
        description="It lies below this with 95 % confidence. Null where too few tokens were judged."
    )
    tokens: int = Field(ge=0, description="Answer tokens that were judged.")
    answers: int = Field(ge=0, description="Answers that were judged.")


class _Sums(BaseModel):
    turns: int = Field(ge=0, description="Requests to the engine.")
    turns_without_receipt: int = Field(ge=0, description="Turns whose prompts are in no sum.")
    prompt_tokens: int = Field(ge=0, description="Tokens of all prompts that have a receipt.")
    kept_tokens: int = Field(ge=0, description="Prompt tokens that were found in the cache.")
    moved_tokens: int = Field(ge=0, description="Prompt tokens whose KV was moved.")
    computed_tokens: int = Field(ge=0, description="Prompt tokens that were prefilled.")
    precomputed_tokens: int = Field(ge=0, description="Of the kept ones: computed before they were asked for.")
    loaded_tokens: int = Field(ge=0, description="Of the kept and moved ones: their KV came back from host memory.")
    repaired_tokens: int = Field(ge=0, description="Of the computed ones: moved KV could have served them.")
    output_tokens: int = Field(ge=0, description="Tokens that were sampled.")
    evicted_tokens: int = Field(ge=0, description="Tokens that evictions took out of prompts.")
    edits: int = Field(ge=0, description="Edits of models and callers, and branches that opened or ended.")
    evictions: int = Field(ge=0, description="Evictions that took something out.")
    fallbacks: int = Field(ge=0, description="Turns that were computed although a move was asked for.")
    background_tokens: int = Field(
        ge=0, description="Tokens that background requests computed for the session. They are in no turn."
    )


class TurnTotalsView(_Sums):
    """Sums over all turns of a session, those included whose record is gone.

    `kept_tokens + moved_tokens + computed_tokens = prompt_tokens`.
    """

    session_id: str = Field(description="The session.")
    saved: SavingsView = Field(description="What stock vLLM would have cost more.")
    harm: list[HarmView] = Field(description="Empty until an answer under moved KV was judged.")
    auto_level: str = Field(description="How bold `auto` is in the next turn: a level of the calibration.")


class SumsView(_Sums):
    """Sums over all turns of a session. `kept_tokens + moved_tokens + computed_tokens = prompt_tokens`."""


class LastTurnView(BaseModel):
    """The newest turn of a session."""

    index: int = Field(ge=0, description="Counts from the session's first turn.")
    created_at: float = Field(description="When it was sent to the engine, in seconds since the epoch.")
    end: Literal["answered", "aborted", "failed"] = Field(description="How it ended.")
    prompt_tokens: int = Field(ge=0, description="0 where the prompt is not known.")
    computed_tokens: int | None = Field(description="Of the prompt. Null without a receipt.")
    fallback_reason: str | None = Field(description="Why a move was refused. Null where none was.")
    ttft_s: float | None = Field(description="Seconds to the first token. Null where nobody knows them.")


class SessionUsage(BaseModel):
    """What one session cost so far, and whether it works now."""

    session_id: str = Field(description="The session.")
    branch_of: str | None = Field(description="The session that this one is a branch of.")
    thread_of: str | None = Field(description="The session that this one is a side thread of.")
    created_at: float = Field(description="Seconds since the epoch.")
    used_at: float = Field(description="The last use.")
    num_messages: int = Field(ge=0, description="Messages in the transcript.")
    num_hidden_fragments: int = Field(ge=0, description="Fragments folded, summarized or redacted now.")
    running: bool = Field(description="Whether a turn is under way.")
    precomputing: bool = Field(description="Whether something is precomputed now, or waits for an idle moment.")
    budget_tokens: int | None = Field(description="The `max_tokens` of the budget that holds. Null without one.")
    last_turn: LastTurnView | None = Field(description="Null where no turn is left.")
    totals: SumsView = Field(description="All turns together.")


class UsageList(BaseModel):
    """What the sessions used last cost so far."""

    object: Literal["list"] = Field(default="list", description="The kind of object.")
    data: list[SessionUsage] = Field(description="The sessions, the one used last first.")
    has_more: bool = Field(description="Whether there are more sessions with counts.")
    num_sessions: int = Field(
        ge=0, description="All sessions. Those that are only in the server's file since it started have no counts."
    )
