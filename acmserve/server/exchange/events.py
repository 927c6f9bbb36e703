"""The server's log of what happened to contexts: one line for each edit, eviction, redaction and fallback.

    acmserve: edit session='agent-7' op=fold fragment=f1 tokens_before=812 tokens_after=11
    {"time": 1764000000.0, "level": "INFO", "event": "edit", "session": "agent-7", "op": "fold", ...}

Decision: a line has ids, names and numbers that the server made, and the session's id. No text of a message goes in, so
`log` takes nothing but these. `--log-format json` writes all lines of acmserve as JSON, one object a line, to stderr.
vLLM's own lines keep the format that vLLM was told.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from enum import Enum
from typing import Any

from acmserve.errors import InvalidRequest
from acmserve.validation import echo, listing

FORMATS = ("text", "json")
_ROOT = "vllm.acmserve"
_FIELDS = "acm_event"

logger = logging.getLogger(f"vllm.{__name__}")


class Event(Enum):
    """What happened to a context. An eviction is what a budget or a clearing edit took out."""

    EDIT = "edit"
    EVICTION = "eviction"
    REDACTION = "redaction"
    FALLBACK = "fallback"


def log(event: Event, session_id: str, **fields: str | int) -> None:
    """Write one line. `fields` are ids, names of ours and numbers."""
    pairs = {"session": session_id, **fields}
    words = " ".join(f"{name}={value!a}" if name == "session" else f"{name}={value}" for name, value in pairs.items())
    logger.info("acmserve: %s %s", event.value, words, extra={_FIELDS: {"event": event.value, **pairs}})


def check_format(value: str, flag: str = "--log-format") -> str:
    """Return one of `FORMATS`. Raises InvalidRequest."""
    if value not in FORMATS:
        raise InvalidRequest(flag, f"does not know {echo(value)}.", f"Choose {listing(FORMATS)}.")
    return value


def use_format(name: str) -> None:
    """Write acmserve's lines of this process in a format. vLLM's handlers write text."""
    root = logging.getLogger(_ROOT)
    root.handlers = [handler for handler in root.handlers if not isinstance(handler.formatter, JsonLines)]
    root.propagate = name != "json"
    if name == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(JsonLines())
        root.addHandler(handler)
        root.setLevel(logging.INFO)


class JsonLines(logging.Formatter):
    """A line of the log as a JSON object. An event has its fields, any other line its message."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the message holds."""
        fields: Mapping[str, Any] = getattr(record, _FIELDS, None) or {"message": record.getMessage()}
        line = {"time": round(record.created, 3), "level": record.levelname, **fields}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)
