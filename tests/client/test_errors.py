"""What errors of every route become, and errors of the official clients."""

from __future__ import annotations

import anthropic
import openai
import pytest

from acmserve.client import errors
from acmserve.client.errors import RefusedRequest, refusal, refusal_of

PROBLEM = {"message": "edits: no.", "type": "ConflictError", "param": "edits", "code": 409, "remedy": "Wait."}


@pytest.mark.parametrize("status", errors.KINDS)
def test_a_status_has_its_class(status: int) -> None:
    error = refusal(status, {"error": {**PROBLEM, "code": status}})
    assert type(error) is errors.KINDS[status]
    assert (error.status, error.param, error.remedy, error.message) == (status, "edits", "Wait.", "edits: no.")
    assert str(error) == "edits: no. Wait."


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, {"error": "Unauthorized"}, "Unauthorized"),
        (500, {"error": {"message": "It broke."}}, "It broke."),
        (502, "<html>", "<html>"),
        (404, {"type": "error", "error": {"type": "not_found_error", "message": "Gone."}}, "Gone."),
        (503, None, "the server answered with status 503"),
    ],
)
def test_other_shapes_are_read(status: int, body: object, message: str) -> None:
    error = refusal(status, body)
    assert (error.status, error.message, error.param, error.remedy) == (status, message, None, "")


@pytest.mark.parametrize(
    "error",
    [
        {"code": "context_length_exceeded", "message": "Too long."},
        {"message": "prompt is too long: 9 tokens > 8 maximum"},
        {"message": "This model's maximum context length is 8 tokens."},
    ],
)
def test_an_overflow_is_known_in_the_words_of_both_vendors(error: dict[str, object]) -> None:
    assert type(refusal(400, {"error": error})) is errors.ContextTooLongError
    assert type(refusal(404, {"error": error})) is errors.NotFoundError


def test_errors_of_the_official_clients_are_read() -> None:
    """As the clients make them of an answer: OpenAI's keeps what stands in `error`, Anthropic's the whole body."""
    for module, body in ((openai, PROBLEM), (anthropic, {"type": "error", "error": PROBLEM})):
        client = (module.OpenAI if module is openai else module.Anthropic)(api_key="unused", base_url="http://nowhere")
        response = pytest.importorskip("httpx2").Response(
            409, json={"error": PROBLEM}, request=pytest.importorskip("httpx2").Request("POST", "http://nowhere")
        )
        made = client._make_status_error("409", body=body, response=response)
        error = refusal_of(made)
        assert type(error) is errors.ConflictError
        assert (error.message, error.remedy) == ("edits: no.", "Wait.")
        client.close()
    assert refusal_of(ValueError("no")) is None
    assert refusal_of(openai.APIConnectionError(request=None)) is None  # type: ignore[arg-type]


def test_every_refusal_is_of_one_tree() -> None:
    assert all(issubclass(kind, RefusedRequest) for kind in errors.KINDS.values())
    assert issubclass(RefusedRequest, errors.AcmClientError)
    assert issubclass(errors.ServerUnreachable, errors.AcmClientError)
