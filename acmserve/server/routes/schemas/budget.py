"""What the routes of budget, eviction and episodes take and give, as pydantic models. Part of the OpenAPI document."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic_core import InitErrorDetails

from acmserve.context.eviction import registry
from acmserve.context.eviction.policy import OptionKind
from acmserve.server.routes.schemas.storage import StorageView

ToolName = str
_TOOL_LIMIT = 256
_TEXT_LIMIT = 16_384


class _Settings(BaseModel):
    """What every budget has, whatever its policy."""

    max_tokens: int | str | None = Field(
        default=None,
        description="The most tokens that a prompt may have: 80000, `80k`, or `50%` of the model's context window.",
        examples=["80k"],
    )
    low_watermark: int | float | str | None = Field(
        default=None,
        description="Where an eviction stops: `auto` (the default), `max_tokens`, tokens, or a share of max_tokens "
        "(0.6, `60%`).",
        examples=["auto"],
    )
    policy: str | None = Field(default=None, description=f"What goes first. {registry.describe()}.")


_KINDS: dict[OptionKind, tuple[Any, dict[str, Any]]] = {
    OptionKind.TOOLS: (list[ToolName], {"max_length": _TOOL_LIMIT}),
    OptionKind.COUNT: (int, {"ge": 0, "le": 2**31}),
    OptionKind.FLAG: (bool, {}),
    OptionKind.TEXT: (str, {"max_length": _TEXT_LIMIT}),
}


def _option_fields() -> dict[str, Any]:
    """One field for each option of a policy of this package."""
    fields: dict[str, Any] = {}
    for option, policies in registry.options():
        kind, bounds = _KINDS[option.kind]
        said = f"{option.description} ({', '.join(policies)})."
        fields[option.name] = (kind | None, Field(default=None, description=said, **bounds))
    return fields


def _list_policies(schema: dict[str, Any]) -> None:
    """The document lists the policies that are loaded when it is asked for. Fields that nobody knows are refused."""
    schema["properties"]["policy"]["anyOf"][0]["enum"] = list(registry.known())
    schema["additionalProperties"] = False


_WithOptions: Any = create_model("_WithOptions", __base__=_Settings, **_option_fields())


class BudgetRequest(_WithOptions):
    """A token budget. Fields that are left out, or null, take their defaults."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_list_policies)

    @model_validator(mode="after")
    def _refuse_unknown(self) -> Self:
        """Options of policies that the operator loaded are read by the budget itself. All else is refused."""
        owners = registry.option_owners()
        unknown = {name: value for name, value in (self.model_extra or {}).items() if name not in owners}
        if unknown:
            errors = [InitErrorDetails(type="extra_forbidden", loc=(name,), input=unknown[name]) for name in unknown]
            raise ValidationError.from_exception_data("BudgetRequest", errors)
        return self


class BudgetView(BaseModel):
    """The budget that holds for a session, and what its next prompt weighs."""

    source: Literal["session", "server"] | None = Field(
        description="Whose it is: the session's own, or the server's `--budget`; null without a budget."
    )
    budget: dict[str, Any] | None = Field(description="The budget, in tokens.")
    tokens: int = Field(
        ge=0, description="Tokens of the next prompt as counted: messages, template, and what is known of the tools."
    )
    storage: StorageView | None = Field(
        default=None,
        description="Why the server's file lacks this change; null where it has it, or where there is none.",
    )


class EvictedEpisode(BaseModel):
    """What goes of one episode, or of one message where the policy knows no episodes."""

    episode: str = Field(description="Its name, or what the message is.")
    levels: dict[str, int] = Field(description="Tokens freed by level: `strip_reasoning`, `strip_bulk`, ...")
    tokens: int = Field(description="Tokens freed in all.")


class ProtectedTokens(BaseModel):
    """Tokens that no eviction may touch."""

    what: str = Field(description="The kind of text.")
    tokens: int = Field(description="Tokens of it.")


class Unmet(BaseModel):
    """Why the budget cannot be met."""

    message: str = Field(description="The reason, with the numbers.")
    tokens_over: int = Field(ge=0, description="Tokens above the budget.")
    protected: list[ProtectedTokens] = Field(description="What is left, the largest first.")


class TurnCost(BaseModel):
    """What an eviction costs the next turn, beside its new messages. An estimate, the receipt says the truth."""

    recomputed_tokens: int = Field(ge=0, description="Tokens of the old context that are computed again.")
    moved_tokens: int = Field(ge=0, description="Tokens whose KV is moved.")


class NextTurns(BaseModel):
    """The cost under each fidelity."""

    exact: TurnCost = Field(description="Under `exact`.")
    reuse: TurnCost = Field(description="Under `reuse`.")


class SummaryCost(BaseModel):
    """What a summary cost beside the conversation. In a dry run the most that it would."""

    input_tokens: int | None = Field(description="Tokens that its model read; null where it does not report them.")
    output_tokens: int | None = Field(description="Tokens that it wrote.")
    form: Literal["appended", "flattened"] = Field(
        default="flattened",
        description="Asked for behind the conversation, or made of its text written out.",
    )
    reason: str | None = Field(default=None, description="Why it was not asked for behind the conversation.")
    computed_tokens: int | None = Field(default=None, description="Tokens of the input that were computed (appended).")


class StageView(BaseModel):
    """What one policy of a chain freed."""

    policy: str = Field(description="The policy.")
    evicted_tokens: int = Field(description="Tokens that it freed.")
    reason: str | None = Field(description="Why it was not asked, or changed nothing.")


class Eviction(BaseModel):
    """An eviction down to the low watermark: planned, or carried out."""

    dry_run: bool = Field(description="Whether nothing was changed.")
    target: int = Field(ge=0, description="The low watermark in tokens.")
    tokens_before: int = Field(ge=0, description="Tokens of the next prompt as it is.")
    tokens_after: int = Field(ge=0, description="Tokens of the next prompt afterwards.")
    evicted: list[EvictedEpisode] = Field(description="What goes, in this order.")
    first_message: int | None = Field(description="The first message that changes; null: nothing does.")
    next_turn: NextTurns = Field(description="What it costs the next turn.")
    summary: SummaryCost | None = Field(description="The summary that a model wrote (compact), or would in a dry run.")
    stages: list[StageView] | None = Field(
        default=None, description="What each policy of a chain freed, in order; null for any other policy."
    )
    unmet: Unmet | None = Field(description="Why max_tokens cannot be met; null where it is.")
    storage: StorageView | None = Field(
        default=None,
        description="Why the server's file lacks this change; null where it has it, or where there is none.",
    )


class EpisodeView(BaseModel):
    """One episode of the conversation."""

    number: int = Field(ge=0, description="Counted in the order in which they started.")
    name: str | None = Field(description="As `delimiter` named it; null: work that was not annotated.")
    type: Literal["expl", "act"] = Field(description="An exploration (`expl`) or an act.")
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

    object: Literal["list"] = Field(default="list", description="The kind of object.")
    data: list[EpisodeView] = Field(description="The episodes, in the order in which they started.")
    prologue_end: int | None = Field(
        description="The messages before this one, the prologue, are never evicted; null before the first start."
    )
