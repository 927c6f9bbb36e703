"""What a request says of its session, without the place where the id stood."""

from __future__ import annotations

from collections.abc import Mapping

from acmserve.plan.request import SessionParams
from acmserve.server.options.session_params import parse_session_request


def params_of(body: object, headers: Mapping[str, str]) -> SessionParams | None:
    asked = parse_session_request(body, headers)
    return None if asked is None else asked.params
