"""The tools `branch` and `return` of Context-Folding (arXiv:2510.11967): reading of calls, words.

    branch   {"description": "find the port", "prompt": "Which port does the server open? Look into serve.py."}
    return   {"message": "8000, set in serve.py:40; --port overrides it."}

Reads a call and judges what can be judged without a conversation. A wrong call raises `InvalidRequest` whose text
teaches. It does not know whether a branch is open (`server/chat/branches.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from acmserve.context.schema.arguments import parse_arguments
from acmserve.context.schema.suite_registry import shipped_tool
from acmserve.errors import InvalidRequest

BRANCH = "branch"
RETURN = "return"
MAX_DESCRIPTION_CHARS = 200
MAX_PROMPT_CHARS = 20_000
MAX_MESSAGE_CHARS = 100_000

BRANCH_TOOL = shipped_tool("branch", BRANCH)
RETURN_TOOL = shipped_tool("branch", RETURN)


@dataclass(frozen=True, slots=True)
class BranchCall:
    """A call of `branch` that was read."""

    description: str
    prompt: str


def read_branch(arguments: object) -> BranchCall:
    """The call as its arguments (JSON text or an object) write it. Raises `InvalidRequest`."""
    values = parse_arguments(BRANCH_TOOL, arguments)
    description = " ".join(values["description"].split())
    return BranchCall(
        _sized("description", description, MAX_DESCRIPTION_CHARS, "Say in a few words what the branch is for."),
        _sized("prompt", values["prompt"].strip(), MAX_PROMPT_CHARS, "Say what to do and what to report."),
    )


def read_return(arguments: object) -> str:
    """The message of a call of `return`. Raises `InvalidRequest`."""
    message = parse_arguments(RETURN_TOOL, arguments)["message"].strip()
    return _sized("message", message, MAX_MESSAGE_CHARS, "Say what the main conversation needs to know.")


def _sized(name: str, text: str, max_chars: int, remedy: str) -> str:
    if not text:
        raise InvalidRequest(name, "is empty.", remedy)
    if len(text) > max_chars:
        raise InvalidRequest(name, f"has {len(text):,} characters; at most {max_chars:,} are allowed.", remedy)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(name, "has half of a surrogate pair, which is no character.") from None
    return text
