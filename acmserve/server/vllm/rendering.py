"""A chat request as vLLM writes its prompt, without tokenizing it and without its media.

It goes the way of `OnlineRenderer.render_chat` (vllm/renderers/online_renderer.py) as far as the template's text. So
the conversation passes vLLM's own reading of messages, and the template gets the arguments of the request. Renderers
that know no text (harmony, Mistral's) give tokens. Nothing is sent to the engine.
"""

from __future__ import annotations

from typing import Any

from vllm.utils.mistral import is_mistral_tokenizer

from acmserve.server.vllm.handlers import ChatCompletionRequest


def render_chat(serving: Any, request: ChatCompletionRequest) -> str | list[int]:
    """The prompt of a request, as text or as tokens. `serving` is vLLM's `OpenAIServingChat`.

    Raises what the template and vLLM raise for messages that they do not take.
    """
    online = serving.online_renderer
    is_excluded = request.tool_choice == "none" and online.exclude_tools_when_tool_choice_none
    tools = None if request.tools is None or is_excluded else [tool.model_dump() for tool in request.tools]
    if online.use_harmony:
        _, inputs = online._make_request_with_harmony(request, tools is not None)
        return list(inputs[0]["prompt_token_ids"])
    as_tokens = is_mistral_tokenizer(online.renderer.tokenizer)
    params = request.build_chat_params(online.chat_template, online.chat_template_content_format).with_defaults(
        {**online.default_chat_template_kwargs, "tools": tools, "tokenize": as_tokens}
    )
    _, prompt = online.renderer.render_messages(list(request.messages), params)
    return str(prompt["prompt"]) if "prompt" in prompt else list(prompt["prompt_token_ids"])
