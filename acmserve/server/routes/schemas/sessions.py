"""What the `/v1/acm` routes take and give, as pydantic models. They are the OpenAPI document.

Requests refuse fields that they do not know, so that a misspelt one is not dropped in silence. JSON null means "not
given", as OpenAI's clients mean it.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
)

from acmserve.context.edits.fragments import MAX_FOCUS_CHARS
from acmserve.plan.request import MAX_SESSION_ID_CHARS
from acmserve.server.routes.schemas.branches import BranchInfo
from acmserve.server.routes.schemas.messages import Message
from acmserve.server.routes.schemas.storage import StorageView
from acmserve.server.routes.schemas.suites import SUITE, AnySuite, Suite

MAX_MESSAGES = 65_536
MAX_EDITS = 1_000
MAX_PAGE = 1_000

Fidelity = Literal["exact", "reuse", "repair", "auto"]
FragmentState = Literal["visible", "folded", "summarized", "redacted"]

_FIDELITY = (
    "How the next turn will be computed, for the estimate of its cost: `exact`, `reuse`, `repair` (with the default "
    "repair) or `auto` (the most that it may cost). Default: the server's."
)


_COMMIT = (
    "Only `now`: an edit of this route takes effect with the session's next chat request. `cheapest` is for a loop on "
    "the server: `acm.commit` of a chat request."
)


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewSession(_Request):
    """A session to make. Every field may be left out."""

    session_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_SESSION_ID_CHARS,
        description="Any text of 1 to 256 characters. Left out: the server makes an id.",
        examples=["agent-7"],
    )
    messages: list[Message] | None = Field(
        default=None,
        max_length=MAX_MESSAGES,
        description="The history so far. Later chat requests resend it and go on from there.",
        examples=[[{"role": "user", "content": "Read this: ..."}]],
    )
    suite: Suite | None = Field(default=None, description=f"{SUITE} Default: `sculptor`.")


class PrecomputeView(BaseModel):
    """What is computed before it is asked for."""

    mode: Literal["off", "heal", "predict", "exact"] = Field(
        description="`heal` computes contexts anew that were served with moved KV, `predict` also those of edits that "
        "can be predicted, `exact` the latter alone, behind turns that move nothing."
    )
    max_pool_share: float = Field(ge=0, le=1, description="The part of the KV cache that this may take.")
    working: bool = Field(
        description="Whether a context of this session is computed now, or waits until nobody else is served."
    )


class ThreadView(BaseModel):
    """A side thread of a session: a title, a compaction, a sub-agent under the same id. It is a session of its own."""

    name: str = Field(description="What `acm.thread` says in its answers.")
    session_id: str = Field(description="Its id as a session.")
    num_messages: int = Field(ge=0, description="Messages in its transcript.")
    used_at: float = Field(description="The last use. The thread used longest ago leaves first.")


class SessionInfo(BaseModel):
    """A session, without its contents."""

    object: Literal["acm.session"] = Field(default="acm.session", description="The kind of object.")
    session_id: str = Field(description="Percent-encode it in a path: `a/b` is `/v1/acm/sessions/a%2Fb`.")
    suite: str = Field(description=f"{SUITE} Of a file that is no longer loaded it is the name that it had.")
    created_at: float = Field(description="Seconds since 1970, UTC.")
    used_at: float = Field(description="The last use; unused sessions expire.")
    num_messages: int = Field(ge=0, description="Messages in the transcript, internal ones included.")
    num_fragments: int = Field(ge=0, description="Fragments cut so far, visible ones included.")
    num_hidden_fragments: int = Field(ge=0, description="Fragments folded, summarized or redacted now.")
    branch_of: str | None = Field(default=None, description="The session that this one is a branch of.")
    thread_of: str | None = Field(default=None, description="The session that this one is a side thread of.")
    threads: list[ThreadView] = Field(
        default_factory=list, description="Its side threads, the one used last first. Empty in a list of sessions."
    )
    precompute: PrecomputeView = Field(
        description="Set by `acm.precompute` in a chat request, else by the server's `--precompute`."
    )
    storage: StorageView | None = Field(
        default=None,
        description="Why the server's file lacks this change; null where it has it, or where there is none.",
    )


class SessionList(BaseModel):
    """One page of sessions, the newest first."""

    object: Literal["list"] = Field(default="list", description="The kind of object.")
    data: list[SessionInfo] = Field(description="The sessions of this page.")
    first_id: str | None = Field(description="Id of the first session of this page.")
    last_id: str | None = Field(description="Send it as `after` to get the next page.")
    has_more: bool = Field(description="Whether there is a next page.")


class ContextMessage(BaseModel):
    """One message as the model sees it now."""

    index: int = Field(ge=0, description="Its number; message ranges of edits count by it.")
    role: str = Field(description="Whose message it is.")
    origin: Literal["client", "answer", "internal"] = Field(
        description="Who wrote it: `client`, `answer` (the model's reply), `internal` (context tools run on the "
        "server: the client does not hold it)."
    )
    num_tokens: int = Field(ge=0, description="Tokens of its texts as shown, without the chat template's own.")
    message: dict[str, Any] | None = Field(
        description="The message, hidden texts replaced by their markers; null where an eviction left nothing of it."
    )
    evicted: bool = Field(description="Whether an eviction took out its text, or all of it.")
    branch: str | None = Field(
        default=None, description="The branch that it belongs to; the messages of one that has ended are not shown."
    )
    kv: str | None = Field(
        description="What the next turn finds of its KV: `kept` (in place), `moved`, `partly moved`, `gone` (to be "
        "computed); null when not known."
    )


class FragmentPiece(BaseModel):
    """Characters `[start, end)` of one text of a message, counted in the original text."""

    index: int = Field(ge=0, description="The message.")
    part: int | None = Field(description="The part of its content; null where that is one string, and in a call.")
    call: int | None = Field(default=None, ge=0, description="The tool call whose arguments have the text, if any.")
    path: list[str | int] | None = Field(default=None, description="The keys to the string in those arguments.")
    start: int = Field(ge=0, description="The first character.")
    end: int = Field(ge=0, description="The character behind the last one.")


class ContextFragment(BaseModel):
    """A named span of the conversation."""

    fragment_id: str = Field(description="What edits and tools call it.")
    state: FragmentState = Field(description="What the model sees of it.")
    role: str = Field(description="The role it was cut from, or `all`.")
    num_tokens: int = Field(ge=0, description="Tokens of its original text.")
    num_tokens_shown: int = Field(ge=0, description="Tokens that the model sees of it now.")
    waits: bool = Field(
        default=False,
        description="Whether it was hidden in a tool loop that runs, and the prompt still shows its text: see "
        "`acm.commit` of a chat request.",
    )
    focus: str | None = Field(description="Focus of the summary that is shown.")
    messages: list[FragmentPiece] = Field(description="Where it lies.")
    preview: str | None = Field(description="How its text begins; null when it was redacted.")


class ContextView(BaseModel):
    """What the model sees now."""

    session_id: str = Field(description="The session.")
    messages: list[ContextMessage] = Field(description="Every message of the transcript.")
    fragments: list[ContextFragment] = Field(description="In the order in which they were cut.")
    branches: list[BranchInfo] = Field(
        default_factory=list, description="The branches that the model opened, in the order of the conversation."
    )
    num_tokens: int = Field(ge=0, description="Tokens of all texts as shown.")
    num_tokens_original: int = Field(ge=0, description="The same with nothing hidden.")


class ToolSuite(BaseModel):
    """The tools of a suite, and system prompts that teach them."""

    suite: AnySuite = Field(description="The suite.")
    tools: list[dict[str, Any]] = Field(description="Ready for the `tools` array of a chat request.")
    presets: dict[str, str] = Field(
        description="System prompts by name: `unified`, `pi-llm`, `needlebench`, `cwl`, `branch`."
    )


class ToolRequest(_Request):
    """One tool call, as the model made it."""

    arguments: dict[str, Any] | str | None = Field(
        default=None,
        description="The call's arguments: an object, or the JSON text in `tool_call.function.arguments`.",
        examples=[{"fragment_id": "f1a2b3"}],
    )
    suite: AnySuite | None = Field(
        default=None,
        description=f"{SUITE} `cwl` has `delimiter`, `branch` has `branch` and `return`. Default: the one that has "
        "the tool.",
    )
    fidelity: Fidelity | None = Field(default=None, description=_FIDELITY)
    commit: Literal["now", "cheapest"] | None = Field(default=None, description=_COMMIT)


class ToolAnswer(BaseModel):
    """The result of a tool call."""

    name: str = Field(description="The tool that was called.")
    result: str = Field(description="The text for the model: send it as the content of the tool message.")
    is_error: bool = Field(description="Whether the call was wrong; `result` then says what to do instead.")
    changed: bool = Field(description="Whether the model sees another conversation now.")
    fragment_ids: list[str] = Field(description="Fragments that the call made or changed.")
    storage: StorageView | None = Field(
        default=None,
        description="Why the server's file lacks this change; null where it has it, or where there is none.",
    )


class MessageRange(_Request):
    """Messages `[start, end)`, numbered as in `GET .../context`."""

    start: int = Field(ge=0, le=2**31, description="Index of the first message.")
    end: int = Field(ge=1, le=2**31, description="Index behind the last message.")


class EditRequest(_Request):
    """One edit: of a fragment, or of a range of messages, which becomes a fragment."""

    op: Literal["fold", "restore", "summarize", "redact"] = Field(
        description="`fold` hides behind a marker, `summarize` shows a summary instead, `restore` shows the original "
        "again, `redact` erases for good."
    )
    fragment_id: str | None = Field(
        default=None, max_length=64, description="Id of the fragment; or give `messages`.", examples=["f1a2b3"]
    )
    messages: MessageRange | None = Field(
        default=None, description="A range of messages `{'start': 4, 'end': 9}`, instead of `fragment_id`."
    )
    focus: str | None = Field(
        default=None,
        max_length=MAX_FOCUS_CHARS,
        description="What a summary is to keep. Default: `main points`.",
        examples=["key decisions"],
    )


class EditsRequest(_Request):
    """Edits to carry out in this order, all or none."""

    edits: list[EditRequest] = Field(min_length=1, max_length=MAX_EDITS, description="At least one edit.")
    fidelity: Fidelity | None = Field(default=None, description=_FIDELITY)
    commit: Literal["now", "cheapest"] | None = Field(default=None, description=_COMMIT)


class PrepareRequest(_Request):
    """Edits that will be asked for, in this order."""

    edits: list[EditRequest] = Field(
        min_length=1, max_length=MAX_EDITS, description="At least one edit, as in `POST .../edits`; none may redact."
    )


class PreparationView(BaseModel):
    """A context that is computed before it is asked for."""

    prepare_id: str = Field(description="What `GET .../prepare/{prepare_id}` takes.")
    status: Literal["pending", "ready", "dropped"] = Field(
        description="`ready`: the next turn behind these edits finds its prefix. `dropped`: the session's next request "
        "came first, or there was no room; what was computed until then stays useful."
    )
    reason: str | None = Field(
        description="Why it was dropped: `interrupted`, `failed`, or what the engine says, such as "
        "`precompute_pool_share`."
    )
    computed_tokens: int | None = Field(description="Tokens computed for it; null until the engine has reported it.")
    ready_tokens: int | None = Field(description="Tokens of its prompt that are in the KV cache; null until then.")


class EditAnswer(BaseModel):
    """One edit carried out."""

    op: Literal["fold", "restore", "summarize", "redact"] = Field(description="The edit.")
    fragment_id: str = Field(description="The fragment that was edited, or made of the range.")
    state: FragmentState = Field(description="What the model sees of it now.")
    tokens_before: int = Field(ge=0, description="Tokens that the model saw of the fragment before.")
    tokens_after: int = Field(ge=0, description="Tokens that it sees now.")


class NextTurn(BaseModel):
    """What all edits together cost the next turn, beside its new message. An estimate, the receipt says the truth."""

    recomputed_tokens: int = Field(ge=0, description="Tokens of the old context that are computed again.")
    moved_tokens: int = Field(ge=0, description="Tokens whose KV is moved to new positions (`reuse`, `repair`).")


class EditsAnswer(BaseModel):
    """All edits carried out."""

    edits: list[EditAnswer] = Field(description="Each edit, in order.")
    tokens_before: int = Field(ge=0, description="Tokens of the whole conversation before.")
    tokens_after: int = Field(ge=0, description="Tokens of the whole conversation now.")
    next_turn: NextTurn = Field(description="What they cost the next turn.")
    storage: StorageView | None = Field(
        default=None,
        description="Why the server's file lacks this change; null where it has it, or where there is none.",
    )
