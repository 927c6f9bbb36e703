"""One API server keeps the transcripts, or several that hand requests over. Those of plain vLLM keep none."""

from __future__ import annotations

import stat
import uuid
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from transformers import LlamaConfig

from acmserve.bench.models.tiny_model import write_tiny_model
from acmserve.errors import AcmError
from acmserve.server.app.launch.api_servers import FOLDER, api_servers_folder, check_api_servers, settle_api_servers
from acmserve.server.app.launch.sibling_layer import has_sessions
from acmserve.server.app.serve import main, parse_vllm_flags
from acmserve.server.options.config import ContextConfig
from acmserve.server.routes.router import router_without_sessions
from tests.support import http
from tests.support.engine.tiny_model import save_random
from tests.support.server.running_server import FLEET, running_server
from tests.support.server.scripted_server import TEMPLATE
from tests.support.server.scripts import log_lines

LOG = log_lines(12)
MAX_DIFFERENCE = 1e-3
REACHED = "acmserve:session_requests_total{"
OTHERS: dict[type, Any] = {str: "x", int: 7, float: 7.5, bool: True}


def settled(config: ContextConfig | None = None, *flags: str) -> tuple[Namespace, list[str]]:
    said: list[str] = []
    args = parse_vllm_flags(["/models/m", *flags])
    settle_api_servers(args, config or ContextConfig(), said.append)
    return args, said


def test_one_server_stands_in_front_of_several_engines() -> None:
    """Where nothing is said, vLLM would start one for each engine."""
    assert parse_vllm_flags(["/models/m", "--data-parallel-size", "2"]).api_server_count is None
    args, (said,) = settled(None, "--data-parallel-size", "2")
    assert args.api_server_count == 1
    assert "one API server in front of 2 engines" in said
    args, said_of_one = settled()
    assert (args.api_server_count, said_of_one) == (1, [])
    args, _ = settled(None, "--headless")
    assert args.api_server_count is None, "it starts none"


def _each_setting(check: Callable[[ContextConfig], object]) -> tuple[set[str], dict[str, str]]:
    """The flags that a check lets pass, and what it says of the others."""
    free, refused = set(), {}
    for each in fields(ContextConfig):
        flag = f"--{each.name.replace('_', '-')}"
        try:
            check(ContextConfig(**{each.name: OTHERS[type(each.default)]}))
        except AcmError as error:
            refused[flag] = str(error)
        else:
            free.add(flag)
    return free, refused


def test_several_servers_refuse_context_maps_alone() -> None:
    _, refused = _each_setting(lambda config: settled(config, "--api-server-count", "2"))
    assert set(refused) == {"--map-model", "--map-url", "--max-map-tokens"}
    assert all("add --infer-sessions" in error for error in refused.values())
    assert _each_setting(lambda config: settled(config, "--api-server-count", "1"))[1] == {}
    config = ContextConfig(infer_sessions=True, map_model="m")
    (said,) = settled(config, "--api-server-count", "2")[1]
    assert "the sessions of an API key have one owner" in said


def test_servers_of_plain_vllm_refuse_every_setting_that_they_would_pass_over() -> None:
    free, refused = _each_setting(lambda config: check_api_servers(2, config))
    for flag, error in refused.items():
        assert error.startswith(f"{flag} needs transcripts, and 2 API servers of plain vLLM keep none.")
    prefixes = {"--share-prefixes", "--session-from", "--log-format", "--max-sessions"}
    assert free == prefixes | {"--summary-model", "--summary-url", "--max-summary-tokens"}


def test_the_start_is_refused_in_one_line(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    flags = ["--port", "0", "--dtype", "float32", "--api-server-count", "2", "--map-model", "m"]
    with pytest.raises(AcmError, match="--map-model is for context maps"):
        main([str(tmp_path), *flags])


def test_the_folder_of_the_sockets_lives_as_long_as_the_servers() -> None:
    args, _ = settled(None, "--api-server-count", "2")
    with api_servers_folder(args):
        folder = Path(getattr(args, FOLDER))
        assert has_sessions(args)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert stat.S_IMODE((folder / "secret").stat().st_mode) == 0o600
    assert not folder.exists()
    one, _ = settled()
    with api_servers_folder(one):
        assert not hasattr(one, FOLDER)
    plain = parse_vllm_flags(["/models/m", "--api-server-count", "2"])
    assert not has_sessions(plain), "plain vLLM makes no folder"


def test_a_route_that_is_off_says_why() -> None:
    app = FastAPI(openapi_url=None)
    app.include_router(router_without_sessions(2))
    answer = TestClient(app).get("/v1/acm/sessions/s/context")
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert "2 API servers keep no transcripts" in error["message"]
    assert "--api-server-count" in error["remedy"]


def write_oracle(folder: Path) -> Path:
    """A model of one layer with the tokenizer of the bundled one, whose answers depend on what it reads."""
    path = write_tiny_model(folder, 4096)
    return save_random(LlamaConfig.from_pretrained(path), path)


def asked(url: str, path: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "max_tokens": 4, "temperature": 0, "return_token_ids": True, **fields}
    answer: dict[str, Any] = http.post(f"{url}{path}", json=body).raise_for_status().json()
    return answer


def is_as_exact(url: str, answer: dict[str, Any], salt: str) -> bool:
    """Whether a stranger who sends the very tokens of an answer's prompt gets the same tokens, as likely."""
    choice = answer["choices"][0]
    fields = {"prompt": answer["prompt_token_ids"], "cache_salt": salt, "logprobs": 1}
    exact = asked(url, "/v1/completions", **fields)["choices"][0]
    odds = [each["logprob"] for each in choice["logprobs"]["content"]]
    return choice["token_ids"] == exact["token_ids"] and odds == pytest.approx(
        exact["logprobs"]["token_logprobs"], abs=MAX_DIFFERENCE
    )


@pytest.mark.parametrize("num_api_servers", [1, 2] if FLEET else [2])
def test_sessions_stay_with_one_of_two_engines(num_api_servers: int, tmp_path: Path) -> None:
    """The turns of each session meet one engine, whichever API server they reach, and a redaction meets both.

    What a fold moves there answers as an engine that computes all of it. The control: the prompt without the fold.
    """
    flags = ["--data-parallel-size", "2", "--max-model-len", "4096", "--block-size", "32", "--served-model-name", "m"]
    flags += ["--chat-template", str(TEMPLATE), "--api-server-count", str(num_api_servers), "--fidelity", "reuse"]
    with running_server(write_oracle(tmp_path / "model"), tmp_path / "log", flags, tiny=True) as url:
        for name in (f"{uuid.uuid4()}" for _ in range(4)):
            sessions = f"{url}/v1/acm/sessions/{name}"
            messages = [{"role": "user", "content": f"{name}: {'The harbour log. ' * 60}"}]
            turn = partial(asked, url, "/v1/chat/completions", session_id=name, messages=messages, logprobs=True)
            for number in range(3):
                answer = turn()
                assert (answer["acm"]["receipt"]["kept_tokens"] > 200) == (number > 0)
                messages += [answer["choices"][0]["message"], {"role": "user", "content": f"{number}. {LOG}"}]
            unfolded = turn()
            fold = {"op": "fold", "messages": {"start": 0, "end": 1}}
            http.post(f"{sessions}/edits", json={"edits": [fold]}).raise_for_status()
            folded = turn()
            assert folded["acm"]["receipt"]["moved_tokens"] > 200
            assert is_as_exact(url, folded, f"{name}, exact")
            assert not is_as_exact(url, folded | {"prompt_token_ids": unfolded["prompt_token_ids"]}, f"{name}, whole")
            redact = {"op": "redact", "messages": {"start": 0, "end": 1}}
            http.post(f"{sessions}/edits", json={"edits": [redact]}).raise_for_status()
            assert turn()["acm"]["forgotten_by"] == 2
        counts = [line for line in http.get(f"{url}/metrics").text.splitlines() if line.startswith(REACHED)]
        reached = [float(line.rpartition(" ")[2]) for line in counts]
        assert [count > 0 for count in reached] == [num_api_servers > 1] * 2, "both were reached, and handed over"
