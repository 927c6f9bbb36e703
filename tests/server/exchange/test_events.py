"""Lines of the log about contexts, as text and as JSON, and the kinds of turns whose time is counted."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from acmserve.errors import InvalidRequest
from acmserve.server.exchange.events import Event, JsonLines, check_format, log, use_format
from acmserve.server.exchange.served_prompts import ServedContext
from acmserve.server.exchange.turn_times import kind_of_turn

LOGGER = "vllm.acmserve.server.exchange.events"


@pytest.fixture
def as_text() -> Iterator[None]:
    yield
    use_format("text")


def test_a_line_has_ids_and_numbers(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(LOGGER), "propagate", False)
    monkeypatch.setattr(logging.getLogger(LOGGER), "handlers", [caplog.handler])
    with caplog.at_level(logging.INFO, LOGGER):
        log(Event.EDIT, "a\nb", op="fold", fragment="f1", tokens_before=9)
    assert caplog.messages == [r"acmserve: edit session='a\nb' op=fold fragment=f1 tokens_before=9"]
    (line,) = [json.loads(JsonLines().format(record)) for record in caplog.records]
    assert line.pop("time") > 0
    told = {"level": "INFO", "event": "edit", "session": "a\nb"}
    assert line == {**told, "op": "fold", "fragment": "f1", "tokens_before": 9}


@pytest.mark.usefixtures("as_text")
def test_json_is_for_all_lines_of_acmserve_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    use_format("json")
    use_format("json")
    logging.getLogger("vllm.acmserve.somewhere").warning("acmserve: %s\nis full", "the disk")
    logging.getLogger("vllm.elsewhere").warning("text")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    (line,) = map(json.loads, lines)
    assert (line["level"], line["message"]) == ("WARNING", "acmserve: the disk\nis full")


def test_an_unknown_format_is_refused() -> None:
    assert check_format("json") == "json"
    with pytest.raises(InvalidRequest, match=r"^--log-format: does not know 'xml'\. Choose 'text' or 'json'\.$"):
        check_format("xml")


def test_a_turn_has_a_kind() -> None:
    tokenizer: Any = SimpleNamespace()
    before = ServedContext(tokenizer)
    prompt = list(range(200))
    receipt = {"precomputed_tokens": 0, "kept_tokens": 0, "moves": [], "fidelity": "exact"}
    assert kind_of_turn(before, prompt, receipt) == "first"
    before.record((), prompt, receipt)
    assert kind_of_turn(before, [*prompt, 7, 8], receipt) == "append"
    assert kind_of_turn(before, prompt[:50] + prompt[60:], receipt) == "edited"
    assert kind_of_turn(before, [*prompt[:199], 0, 8], receipt) == "edited"
    assert kind_of_turn(before, [*prompt, 7], receipt | {"precomputed_tokens": 3}) == "precomputed"
