"""How each client speaks, in our own words: fields, headers and order of its requests, as `make clients` recorded them.

    open      the first turn          called    the same with a call and its result
    resumed   a second turn, in the spelling of a new process
    side      a title, a sub-agent or a compaction beside the conversation, where the client sends one

So that the suite covers each way of speaking without installing a client. Names of clients' tools and headers are
theirs, for they are the protocol. Every text is ours. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.support.clients.shapes.claude_code import claude_code
from tests.support.clients.shapes.codex import codex
from tests.support.clients.shapes.opencode import opencode
from tests.support.clients.shapes.shape import Shape
from tests.support.clients.shapes.without_ids import aider, mini_swe_agent, qwen_code

SPEAKERS: Mapping[str, Callable[[str], Sequence[Shape]]] = {
    "opencode": opencode,
    "Claude Code": claude_code,
    "Codex": codex,
    "Qwen Code": qwen_code,
    "mini-swe-agent": mini_swe_agent,
    "aider": aider,
}
WITH_IDS = ("opencode", "Claude Code", "Codex")
"""Those that name their session in a way of their own."""
