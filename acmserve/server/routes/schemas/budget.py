"""What the routes of budget, eviction and episodes take and give, as pydantic models; part of the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ToolName = str
_TOOL_LIMIT = 256
_INSTRUCTIONS_LIMIT = 16_384


class BudgetRequest(BaseModel):
    """A token budget. Fields that are left out, or null, take their defaults."""

    model_config = ConfigDict(extra="forbid")
    max_tokens: int | str | None = Field(
        default=None,
        description="The most tokens that a prompt may have: 80000, `80k`, or `50%` of the model's context window.",
        examples=["80k"],
    )
    low_watermark: int | float | str | None = Field(
        default=None,
        description="Where an eviction stops: `auto` (the default), tokens, or a share of max_tokens (0.6, `60%`).",
        examples=["auto"],
    )
    policy: Literal["cwl", "pi-cwl", "clear_tool_uses", "recency", "compact"] | None = Field(
        default=None,
        description="What goes first. `cwl`: episodes marked with `delimiter`, acts before what they depend on; "
        "`pi-cwl`: the oldest episode; `clear_tool_uses`: old tool results; `recency`: the oldest steps; "
        "`compact`: the oldest steps, for which a summary stands that a model writes.",
    )
    bulk_tools: list[ToolName] | None = Field(
        default=None, max_length=_TOOL_LIMIT, description="Tools whose results list much; they go first (cwl, pi-cwl)."
    )
    intermediate_tools: list[ToolName] | None = Field(
        default=None, max_length=_TOOL_LIMIT, description="Tools that read or run; they go second (cwl, pi-cwl)."
    )
    keep: int | None = Field(default=None, ge=0, le=2**31, description="Tool results that stay (clear_tool_uses).")
    exclude_tools: list[ToolName] | None = Field(
        default=None, max_length=_TOOL_LIMIT, description="Tools whose results stay (clear_tool_uses)."
    )
    clear_tool_inputs: bool | None = Field(
        default=None, description="Whether the arguments of cleared calls go, too (clear_tool_uses)."
    )
    instructions: str | None = Field(
        default=None,
        max_length=_INSTRUCTIONS_LIMIT,
        description="What the summary is to keep, in place of the server's own instructions (compact).",
    )


class BudgetView(BaseModel):
    """The budget that holds for a session, and what its next prompt weighs."""

    source: Literal["session", "server"] | None = Field(
        description="Whose it is: the session's own, or the server's `--budget`; null without a budget."
    )
    budget: dict[str, Any] | None = Field(description="The budget, in tokens.")
    tokens: int = Field(
        ge=0, description="Tokens of the next prompt as counted: messages, template, and what is known of the tools."
    )


class EvictedEpisode(BaseModel):
    """What goes of one episode, or of one message where the policy knows no episodes."""

    episode: str
    levels: dict[str, int] = Field(description="Tokens freed by level: `strip_reasoning`, `strip_bulk`, ...")
    tokens: int = Field(description="Tokens freed in all.")


class ProtectedTokens(BaseModel):
    """Tokens that no eviction may touch."""

    what: str
    tokens: int


class Unmet(BaseModel):
    """Why the budget cannot be met."""

    message: str
    tokens_over: int = Field(ge=0)
    protected: list[ProtectedTokens] = Field(description="What is left, the largest first.")


class TurnCost(BaseModel):
    """What an eviction costs the next turn, beside its new messages; an estimate, the receipt says the truth."""

    recomputed_tokens: int = Field(ge=0)
    moved_tokens: int = Field(ge=0)


class NextTurns(BaseModel):
    """The cost under each fidelity."""

    exact: TurnCost
    reuse: TurnCost


class SummaryCost(BaseModel):
    """What a summary cost beside the conversation; in a dry run the most that it would."""

    input_tokens: int | None = Field(description="Tokens that its model read; null where it does not tell.")
    output_tokens: int | None = Field(description="Tokens that it wrote.")


class Eviction(BaseModel):
    """An eviction down to the low watermark: planned, or carried out."""

    dry_run: bool = Field(description="Whether nothing was changed.")
    target: int = Field(ge=0, description="The low watermark in tokens.")
    tokens_before: int = Field(ge=0, description="Tokens of the next prompt as it is.")
    tokens_after: int = Field(ge=0, description="Tokens of the next prompt afterwards.")
    evicted: list[EvictedEpisode] = Field(description="What goes, in this order.")
    first_message: int | None = Field(description="The first message that changes; null: nothing does.")
    next_turn: NextTurns
    summary: SummaryCost | None = Field(description="The summary that a model wrote (compact), or would in a dry run.")
    unmet: Unmet | None = Field(description="Why max_tokens cannot be met; null where it is.")


class EpisodeView(BaseModel):
    """One episode of the conversation."""

    number: int = Field(ge=0, description="Counted in the order in which they started.")
    name: str | None = Field(description="As `delimiter` named it; null: work that was not annotated.")
    type: Literal["expl", "act"]
    state: Literal["active", "ended", "stripped", "evicted"] = Field(
        description="`stripped`: a part of it was evicted. Of an evicted `expl` its description is left."
    )
    start: int = Field(ge=0, description="Its first message, as `GET .../context` numbers them.")
    end: int | None = Field(description="The message behind its last one; null while it is active.")
    depends_on: list[str] = Field(description="The explorations that an act uses.")
    description: str | None = Field(description="What an exploration found.")
    num_tokens: int = Field(ge=0, description="Tokens of what it holds.")
    num_tokens_shown: int = Field(ge=0, description="Tokens that the model sees of it now.")


class EpisodeList(BaseModel):
    """The episode graph of a session."""

    object: Literal["list"] = "list"
    data: list[EpisodeView]
    prologue_end: int | None = Field(
        description="The messages before this one, the prologue, are never evicted; null before the first start."
    )
