"""The paths of vLLM's answering routes that are replaced, and what each may hold."""

from __future__ import annotations

CHAT_PATH = "/v1/chat/completions"
MESSAGES_PATH = "/v1/messages"
COUNT_PATH = "/v1/messages/count_tokens"
RESPONSES_PATH = "/v1/responses"
COMPACT_PATH = "/v1/responses/compact"
COMPLETIONS_PATH = "/v1/completions"
REQUIRED_PATHS = frozenset({CHAT_PATH, COMPLETIONS_PATH})
PATHS = REQUIRED_PATHS | {RESPONSES_PATH, MESSAGES_PATH, COUNT_PATH}
EDITED_PATHS = (CHAT_PATH, MESSAGES_PATH, COUNT_PATH)
