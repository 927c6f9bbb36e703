"""Addresses of servers elsewhere, as flags give them: wrong ones end the start, and no request."""

from __future__ import annotations

import pytest

from acmserve.errors import InvalidRequest
from acmserve.server.options.base_url import check_base_url
from acmserve.server.options.config import ContextConfig


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:8001",
        "https://api.example.com/v1/",
        "HTTP://[::1]:80/openai/v1",
        "http://me:pass@10.0.0.7:65535",
        "http://caf\u00e9.example",
    ],
)
def test_an_address_of_a_server_is_taken(url: str) -> None:
    check_base_url(url, "--summary-url")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:8001", "'localhost:8001' does not begin with http:// or https://."),
        ("ftp://there", "'ftp://there' does not begin with http:// or https://."),
        ("//there", "does not begin with http:// or https://."),
        ("http://", "'http://' names no host."),
        ("http:there", "names no host."),
        ("http://:8001/v1", "names no host."),
        ("http://there:port", "has no host and port that can be read."),
        ("http://there:99999", "has no host and port that can be read."),
        ("http://there:0", "has no host and port that can be read."),
        ("http://[::1", "has no host and port that can be read."),
        ("http://there/v1\n", r"'http://there/v1\n' has a space in it."),
        ("http://over there", "has a space in it."),
        ("http://there/v1?a=b", "'http://there/v1?***' has a query, behind ?."),
        ("http://there/v1?", "has a query, behind ?."),
        ("http://there#model", "'http://there#model' has a fragment, behind #."),
        ("http://there/#", "has a fragment, behind #."),
    ],
)
def test_any_other_is_refused_with_the_remedy(url: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_base_url(url, "--summary-url")
    assert str(caught.value).startswith("--summary-url: '")
    assert said in str(caught.value)
    assert str(caught.value).endswith(
        "Give the address that its routes stand below, for instance http://localhost:8001/v1."
    )


@pytest.mark.parametrize(
    "url", ["me:pass@there", "http://me:pass@there?key=pass", "https://a:pa/pass@:x", "http://u@pass@"]
)
def test_passwords_and_queries_stay_out(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_base_url(url, "--map-url")
    assert "pass" not in str(caught.value)


@pytest.mark.parametrize("key", ["summary_url", "map_url", "embedder"])
def test_the_section_of_a_server_has_no_other_either(key: str) -> None:
    assert getattr(ContextConfig.parse({"context": {key: "http://there"}}), key) == "http://there"
    with pytest.raises(InvalidRequest, match=f"--{key.replace('_', '-')}: 'there' does not begin with"):
        ContextConfig.parse({"context": {key: "there"}})


@pytest.mark.parametrize("spec", ["", "http://there#model?", "http://there/v1#a b", "model2vec:a folder?"])
def test_an_embedder_may_have_a_model_or_be_a_folder(spec: str) -> None:
    assert ContextConfig.parse({"context": {"embedder": spec}}).embedder == spec
