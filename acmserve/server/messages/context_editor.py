"""Carries out `context_management` between a route and vLLM: the request is edited, the answer says what was cleared.

    /v1/messages               blocks --clear--> blocks --over the trigger?--> summary + what stays --clear--.
                                                  '------------------------------------------------------> vLLM
    /v1/messages/count_tokens  counted twice, as sent and as edited     --> input_tokens, original_input_tokens
    /v1/chat/completions       messages --edit--> messages --> vLLM --> answer + context_management.applied_edits

Each request is judged alone here. What is cleared in a session is kept by the session itself (`route.py`), which comes
here only for a summary. `count_tokens` never writes one.

Compaction needs no memory: the client has the summary, and sends it back. Requests arrive here with the blocks of
earlier summaries applied (see `request.py`). The transformation is repeated on the JSON body.

Tokens are counted part by part, by the served tokenizer and with what the template writes around them (see
`template_probe.py`). So a trigger is right to a few tokens, and the prompt is not rendered twice for it. Images count
nothing, and reasoning counts whether the template shows it or not.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from acmserve.context.anthropic.blocks import edit_blocks, to_chat
from acmserve.context.anthropic.compaction_blocks import has_compaction, resume, with_summary, without_compaction
from acmserve.context.eviction.clearing_edits import Compact, EditedHistory, VendorEdit, edit_chat
from acmserve.context.eviction.compact import HEAD
from acmserve.context.transcript.message import Message
from acmserve.errors import InvalidRequest
from acmserve.server.budget.conversation_summary import ConversationSummarizer, LivePrompt
from acmserve.server.exchange.delivery import deliver_field
from acmserve.server.messages.compaction_answer import deliver_compaction, paused_answer
from acmserve.server.messages.prompt_compactor import Outgrown, PromptCompactor
from acmserve.server.models.template_probe import TemplateFrame, TemplateProbe
from acmserve.server.options.context_management import FIELD
from acmserve.server.vllm.handlers import AnthropicMessage, ChatCompletionRequest

Endpoint = Callable[..., Awaitable[Response | None]]
Answer = Callable[[Any], Awaitable[Response | None]]


@dataclass(frozen=True, slots=True)
class EditingRequest:
    """A request to edit and answer: `request` is vLLM's object, `body` the JSON that it was read from.

    `session_id` is that of its session, as the client knows it. None without one.
    """

    request: Any
    raw_request: Request
    body: Mapping[str, Any]
    edits: tuple[VendorEdit, ...]
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class EditedBlocks:
    """vLLM's request as it is to be answered, its messages `shown` as JSON, and what was decided."""

    request: Any
    shown: Sequence[Message]
    history: EditedHistory


class ContextEditor:
    """At `app.state.acm_context_editor`. One per API server process. `compactor` writes the summaries."""

    def __init__(self, probe: TemplateProbe, summarizer: ConversationSummarizer) -> None:
        self._probe = probe
        self.compactor = PromptCompactor(summarizer, probe.count)

    async def answer_messages(self, asked: EditingRequest, core: Endpoint) -> Response | None:
        """Answer /v1/messages with vLLM's route function."""
        edited = await self._edit_blocks(asked)
        compact = next((edit for edit in asked.edits if isinstance(edit, Compact)), None)

        async def answer(request: Any) -> Response | None:
            return await core(request=request, raw_request=asked.raw_request)

        if compact is None or edited.history.num_tokens <= compact.trigger_tokens:
            response = await answer(edited.request)
        else:
            whole = replace(asked, request=edited.request)
            response = await self.answer_compacted(whole, to_chat(edited.shown).messages, answer, blocks=edited.shown)
        return deliver_field(response, FIELD, {"applied_edits": edited.history.applied})

    async def answer_compacted(
        self,
        asked: EditingRequest,
        shown: Sequence[Message],
        answer: Answer,
        *,
        live: LivePrompt | None = None,
        blocks: Sequence[Message] = (),
        check_current: Callable[[], None] = lambda: None,
    ) -> Response | None:
        """The answer behind a summary of what the model was `shown`, a chat in OpenAI's form. None: the client is gone.

        `answer` takes vLLM's request. Where no summary is had, that is the one that was asked. The summary is asked for
        behind the conversation of a session (`live`), or behind the `blocks` of a request without one. `check_current`
        is that of `Outgrown`.
        """
        compact = next(edit for edit in asked.edits if isinstance(edit, Compact))
        num_kept = (await self._edit_summarized(asked, HEAD)).history.num_tokens
        outgrown = Outgrown(compact, shown, num_kept, live, asked.request, blocks, check_current)
        compacted = await self.compactor.compact(outgrown, asked.raw_request)
        if compacted is None:
            return None
        compacted = replace(compacted, session_id=asked.session_id)
        if compacted.summary is None:
            return deliver_compaction(await answer(asked.request), compacted)
        if compact.pause_after_compaction:
            response = paused_answer(asked.body["model"], compacted, stream=bool(asked.request.stream))
            return deliver_field(response, FIELD, {"applied_edits": []})
        later = await self._edit_summarized(asked, compacted.summary)
        return deliver_compaction(await answer(later.request), compacted)

    async def count_messages(self, asked: EditingRequest, core: Endpoint) -> Response | None:
        """Answer /v1/messages/count_tokens. vLLM counts, also what is too long for the model without the edits."""
        whole = _without_blocks(asked)
        edited = await self._edit_blocks(asked)
        original = await core(request=whole, raw_request=asked.raw_request)
        if edited.request is whole:
            return original
        if isinstance(original, JSONResponse) and original.status_code == 200:
            num_original = json.loads(bytes(original.body))["input_tokens"]
        else:
            weights = await self._probe.weigh(_frame(asked.body), asked.raw_request)
            num_original = edit_blocks(without_compaction(asked.body["messages"]), (), weights)[1].num_tokens
        response = await core(request=edited.request, raw_request=asked.raw_request)
        return deliver_field(response, FIELD, {"original_input_tokens": num_original})

    async def answer_chat(self, asked: EditingRequest, core: Endpoint) -> Response | None:
        """Answer /v1/chat/completions of a request that is judged alone."""
        messages, request = asked.body["messages"], asked.request
        weights = await self._probe.weigh(_chat_frame(asked.body), asked.raw_request)
        shown, edited = edit_chat(messages, asked.edits, weights)
        if edited.omissions:
            request = ChatCompletionRequest.model_validate({**asked.body, "messages": shown})
        response = await core(request=request, raw_request=asked.raw_request)
        return deliver_field(response, FIELD, {"applied_edits": edited.applied})

    async def _edit_blocks(self, asked: EditingRequest) -> EditedBlocks:
        """The request with what is left of its messages. The very object where all is left."""
        messages: list[Message] = resume(asked.body["messages"])
        weights = await self._probe.weigh(_frame(asked.body), asked.raw_request)
        shown, history = edit_blocks(messages, asked.edits, weights)
        if len(shown) == len(messages) and all(new is old for new, old in zip(shown, messages, strict=True)):
            return EditedBlocks(asked.request, shown, history)
        return EditedBlocks(_with_messages(asked.request, messages, shown), shown, history)

    async def _edit_summarized(self, asked: EditingRequest, summary: str) -> EditedBlocks:
        """The request with a summary of its messages, and what stays of them. As later requests will begin."""
        messages = with_summary(asked.body["messages"], summary)
        weights = await self._probe.weigh(_frame(asked.body), asked.raw_request)
        shown, history = edit_blocks(messages, asked.edits, weights)
        return EditedBlocks(_with_messages(asked.request, (), shown), shown, history)


def _with_messages(request: Any, messages: Sequence[Message], shown: Sequence[Message]) -> Any:
    """A copy of vLLM's request with these messages. Those that were sent like that keep their parsed objects."""
    parsed = dict(zip(map(id, messages), request.messages if messages else (), strict=True))
    new = [parsed.get(id(message)) or AnthropicMessage.model_validate(message) for message in shown]
    return request.model_copy(update={"messages": new})


def _without_blocks(asked: EditingRequest) -> Any:
    """vLLM's request with all messages that were sent, as if no summary stood for any. The very object if none does."""
    messages = asked.body["messages"]
    if not has_compaction(messages):
        return asked.request
    try:
        parsed = [AnthropicMessage.model_validate(message) for message in without_compaction(messages)]
    except ValidationError as error:
        raise InvalidRequest("messages", f"cannot be read: {error.errors()[0]['msg']}.") from error
    return asked.request.model_copy(update={"messages": parsed})


def _frame(body: Mapping[str, Any]) -> TemplateFrame:
    return TemplateFrame(body["model"], body.get("system"), body.get("tools"), body.get("chat_template_kwargs"))


def _chat_frame(body: Mapping[str, Any]) -> TemplateFrame:
    """The frame of a request in OpenAI's form. Its system text is one of its messages."""
    tools = [
        {
            "name": tool["function"].get("name"),
            "description": tool["function"].get("description"),
            "input_schema": tool["function"].get("parameters") or {},
        }
        for tool in body.get("tools") or ()
        if isinstance(tool.get("function"), Mapping)
    ]
    return TemplateFrame(body.get("model") or "", None, tools or None, body.get("chat_template_kwargs"))
