"""The files of the page `/acm/`: all that a module imports is there, nothing points to another host, and headers hold.

The browser obeys the policy (`test_browser.py`). Here it is read, so that a machine without a browser checks it, too.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from acmserve.server.inspector.page import MEDIA_TYPES, POLICY, inspector_router, page_files

STATIC = Path(str(files("acmserve.server.inspector") / "static"))
MAX_FILES, MAX_LINES = 15, 320
IMPORT = re.compile(r"""^(?:import (?:[^;"']* from )?|export [^;"'=]*\bfrom )"([^"]+)";|\bimport\(""", re.MULTILINE)
LINK = re.compile(r"""\b(?:href|src)="([^"#][^"]*)\"""")
OUTSIDE = re.compile(r"(?:https?:)?//[\w.-]+\.\w+")
NAMESPACES = {"http://www.w3.org", "//www.w3.org"}
"""Names, which nobody loads."""
DANGERS = ("innerHTML", "outerHTML =", "insertAdjacentHTML", "document.write", "eval(", "new Function")
EXPORT = re.compile(r"export (?:async )?(?:function\*?|const|class) (\w+)")


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(inspector_router())
    return TestClient(app)


def scripts() -> dict[str, str]:
    return {name: content.decode() for name, content in page_files().items() if name.endswith(".js")}


def missing(name: str, text: str, known: set[str]) -> list[str]:
    """Imports of a module that lead to no file of the page."""
    folder = STATIC / name
    found = [match.group(1) for match in IMPORT.finditer(text)]
    reached = {each: (folder.parent / (each or "")).resolve() for each in found}
    return [str(each) for each, path in reached.items() if each is None or str(path.relative_to(STATIC)) not in known]


def outside(text: str) -> list[str]:
    return [match for match in OUTSIDE.findall(text) if match not in NAMESPACES]


def test_every_module_that_is_imported_is_there_and_used() -> None:
    modules = scripts()
    assert {name: lost for name, text in modules.items() if (lost := missing(name, text, set(modules)))} == {}
    imported = {
        str((STATIC / name).parent.joinpath(match.group(1)).resolve().relative_to(STATIC))
        for name, text in modules.items()
        for match in IMPORT.finditer(text)
    }
    assert set(modules) - imported == {"main.js"}


def test_a_name_that_is_imported_is_exported() -> None:
    modules = scripts()
    exported = {name: set(EXPORT.findall(text)) for name, text in modules.items()}
    num_names = 0
    for name, text in modules.items():
        for names, target in re.findall(r'import \{([^}]+)\} from "([^"]+)"', text):
            place = str((STATIC / name).parent.joinpath(target).resolve().relative_to(STATIC))
            wanted = {each.strip() for each in names.split(",") if each.strip()}
            assert wanted <= exported[place], (name, place)
            assert "no_such_name" not in exported[place]
            num_names += len(wanted)
    assert num_names > len(modules), "the control: imports are found"


def test_nothing_points_to_another_host() -> None:
    assert {name: found for name, content in page_files().items() if (found := outside(content.decode()))} == {}


def test_the_checks_find_what_they_look_for() -> None:
    assert missing("main.js", 'import { x } from "./parts/gone.js";', set(scripts())) == ["./parts/gone.js"]
    assert missing("main.js", "await import(name)", set(scripts())) == ["None"]
    assert outside('fetch("https://example.com/x")') == ["https://example.com"]
    assert outside('<script src="//cdn.example.com/x.js">') == ["//cdn.example.com"]


def test_what_the_page_loads_is_there() -> None:
    links = LINK.findall(page_files()["index.html"].decode())
    assert {"main.js", "base.css", "views.css", "icon.svg"} == {link for link in links if "." in link}
    assert {link for link in links if "." in link} <= set(page_files())


def test_texts_never_become_markup() -> None:
    found = {name: [each for each in DANGERS if each in text] for name, text in scripts().items()}
    assert {name: each for name, each in found.items() if each} == {}


def test_colours_of_tokens_stand_in_both_schemes() -> None:
    kinds = re.findall(r"^  (\w+): \[", page_files()["parts/palette.js"].decode(), re.MULTILINE)
    assert {"kept", "moved", "computed", "precomputed", "folded", "evicted"} <= set(kinds)
    light, dark = page_files()["base.css"].decode().split("prefers-color-scheme: dark")
    for kind in kinds:
        assert f"--{kind}:" in light
        assert f"--{kind}:" in dark


def test_files_are_short_and_folders_small() -> None:
    sizes = {name: content.count(b"\n") for name, content in page_files().items()}
    assert {name: size for name, size in sizes.items() if size > MAX_LINES} == {}
    for folder in {path.parent for path in STATIC.rglob("*")}:
        assert len(list(folder.iterdir())) <= MAX_FILES, folder
    assert {path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file()} == set(page_files())


def test_every_file_is_served_with_its_type_and_the_policy(client: TestClient) -> None:
    for name, content in page_files().items():
        answer = client.get(f"/acm/{name}")
        assert (answer.status_code, answer.content) == (200, content)
        assert answer.headers["content-type"] == MEDIA_TYPES[name.rpartition(".")[2]]
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert client.get("/acm/").content == page_files()["index.html"]


def test_the_policy_lets_the_page_talk_to_its_server_alone() -> None:
    rules = dict(rule.partition(" ")[::2] for rule in POLICY.split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
    assert rules["frame-ancestors"] == "'none'"
    assert "unsafe" not in POLICY


def test_a_file_is_sent_once(client: TestClient) -> None:
    tag = client.get("/acm/main.js").headers["etag"]
    again = client.get("/acm/main.js", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get("/acm/parts/api.js").headers["etag"] != tag


@pytest.mark.parametrize("path", ["nothing.js", "../page.py", "%2e%2e/page.py", "parts", "parts/", "__init__.py"])
def test_nothing_else_is_served(client: TestClient, path: str) -> None:
    answer = client.get(f"/acm/{path}")
    assert answer.status_code == 404
    assert "def " not in answer.text


def test_the_address_without_its_slash_leads_to_the_page(client: TestClient) -> None:
    answer = client.get("/acm", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (308, "/acm/")
    behind = TestClient(client.app, root_path="/behind").get("/acm", follow_redirects=False)
    assert behind.headers["location"] == "/behind/acm/"
