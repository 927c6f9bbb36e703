"""Every exception that acmserve raises, as one tree.

A caller who embeds the engine catches `AcmError`; the server maps `InvalidRequest` to HTTP 400 and nothing else.
Messages name the bad value and the remedy.
"""

from __future__ import annotations


class AcmError(Exception):
    """Root of the tree."""


class InvalidRequest(AcmError, ValueError):
    """A request carries a value that acmserve cannot accept; a `ValueError`, which vLLM's server answers with 400.

    `field` is the dotted path of the offending field (`acm.fidelity`), for the error body of the server.
    """

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message


class EngineMismatch(AcmError):
    """The installed vLLM does not have the hooks that acmserve was built for; the plugin stays off."""


class MoveRefused(AcmError):
    """This model's KV may not be moved; `reason` is short and stable, and becomes the receipt's `fallback_reason`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class IntegrityError(AcmError):
    """An invariant of a stateful class is broken; the message prints the numbers that disagree."""
