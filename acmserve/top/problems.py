"""What is said where the server gives no numbers: one line with its remedy. Pure."""

from __future__ import annotations

from acmserve.client.errors import (
    AcmClientError,
    AuthenticationError,
    MethodNotAllowedError,
    NotFoundError,
    ServerUnreachable,
    UnreadableAnswer,
)
from acmserve.top.columns import plain

_GIVE = "with --api-key or in $ACMSERVE_API_KEY"


def explained(url: str, has_key: bool, error: AcmClientError) -> str:
    """What went wrong, in one line with its remedy."""
    place = plain(url)
    match error:
        case ServerUnreachable():
            reason = plain(str(error.__cause__ or error)) or type(error.__cause__).__name__
            return f"no server answers at {place} ({reason}); start one with `acmserve serve MODEL`, or name its URL"
        case AuthenticationError() if has_key:
            return f"the server at {place} refuses this API key; give another one {_GIVE}"
        case AuthenticationError():
            return f"the server at {place} asks for an API key; give it {_GIVE}"
        case NotFoundError() | MethodNotAllowedError() | UnreadableAnswer():
            return f"what answers at {place} is no acmserve of this version ({plain(str(error))})"
    return f"the server at {place} refused: {plain(str(error))}"
