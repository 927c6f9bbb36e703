"""Reads `context_management` of /v1/responses, OpenAI's form: `[{"type": "compaction", "compact_threshold": 200000}]`.

Strict, as the other form is: an unknown entry or key is refused by its path. The vendor's least threshold is 1,000.
Here any is allowed. Without one it is a share of the model's window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from acmserve.errors import InvalidRequest
from acmserve.server.options.compaction_content import COMPACTION
from acmserve.server.options.context_management import FIELD, MAX_VALUE
from acmserve.validation import check_object, echo

_DEFAULT_SHARE = 0.8


def parse_compaction(body: Mapping[str, Any], window: int) -> int | None:
    """The threshold in tokens. None where no compaction is asked for. Raises InvalidRequest."""
    asked = body.get(FIELD)
    if asked is None or asked == []:
        return None
    if not isinstance(asked, list):
        raise InvalidRequest(FIELD, f"must be a list of entries, not {echo(asked)}.", "Send it as OpenAI's API has it.")
    if len(asked) > 1:
        raise InvalidRequest(f"{FIELD}[1]", "is one entry too many.", "Send one of type compaction.")
    entry = check_object(asked[0], f"{FIELD}[0]", ("type", "compact_threshold"))
    if entry.get("type") != COMPACTION:
        raise InvalidRequest(f"{FIELD}[0].type", f"must be {COMPACTION}, not {echo(entry.get('type'))}.")
    threshold = entry.get("compact_threshold")
    if threshold is None:
        return int(window * _DEFAULT_SHARE)
    if isinstance(threshold, bool) or not isinstance(threshold, int) or not 1 <= threshold <= MAX_VALUE:
        raise InvalidRequest(
            f"{FIELD}[0].compact_threshold", f"must be a number of tokens from 1 to {MAX_VALUE}, not {echo(threshold)}."
        )
    return threshold
