"""Engines and servers that the whole suite shares: each takes tens of seconds to start."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from acmserve.models import smollm2
from acmserve.plan.calibration import EVERY, LEVELS, CalibratedShape, Calibration
from tests.support.server.own_suite import OWN_SUITE
from tests.support.server.running_server import running_server
from tests.support.server.scripted_server import FLAGS, write_model
from tests.support.soak.report import SoakReport

if TYPE_CHECKING:
    from tests.support.engine.engine import Engine

# An eager engine compiles one thing nevertheless, the ranks of log-probabilities: up to 20 seconds of C++ each.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

# Engines have one thread each. Several wait for each other in every layer, which takes a third more CPU, and the other
# processes of the suite have the second core. The worker of `test_restart.py` has as many as vLLM binds.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# GiB of KV cache of an engine whose test names no size. vLLM's own 4 are written to at once, by three processes.
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

# No deadlines: what else the machine does is no property of the code.
hypothesis.settings.register_profile(
    "acmserve",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],  # a busy machine is slow
)
hypothesis.settings.load_profile("acmserve")

_SCRIPTED = {
    "exchange": "usage",
    "messages": "compaction_http context_management_http sessions_http",
    "maps": "engine",
    "chat": "long_session loop redacted_text storage storm turn",
    "sessions": "fold_or_fail rollout threads turns_http",
    "precompute": "harm_http http next_message",
    "http": "vendor_errors",
    "responses": "every_route responses_http",
    "budget": "commits live_summary text_agent trace",
}
"""Files of `tests/server/` that use the scripted server, in folders whose others do not."""

SCOPES = {
    "scripted_server": (
        *(f"tests/server/{folder}/test_{name}.py" for folder, names in _SCRIPTED.items() for name in names.split()),
        *("tests/server/", "tests/docs/test_blocks.py"),
        *("tests/deploy/test_metrics.py", "tests/deploy/test_prometheus.py", "tests/bench/learner/test_stages.py"),
    ),
    "server": (
        *("tests/docs/test_first_pages.py", "tests/server/app/test_real_model.py"),
        *("tests/server/speculation/test_http.py", "tests/server/precompute/test_default.py"),
        *("tests/server/precompute/test_left_http.py", "tests/server/precompute/test_harm_smollm2.py"),
        "tests/bench/edit/test_exact_check.py",
    ),
    "keyed_server": ("tests/server/app/test_isolation.py", "tests/server/launch/test_start_and_end.py"),
    "precomputing_engine": (
        *("tests/engine/scheduling/test_background_prefill.py", "tests/engine/scheduling/test_chunk_exits.py"),
        "tests/engine/scheduling/test_server_flag.py",
    ),
    "smollm2_engine": ("tests/engine/test_smollm2.py", "tests/engine/test_fidelity.py", "tests/engine/test_canary.py"),
}
"""Where the tests stand that share a server or an engine. Each of these stays in one process of xdist."""

SHARED_BY = {scope: (scope,) for scope in SCOPES} | {"smollm2_engine": ("stock_engine", "smollm2_engine")}
"""What the tests of a scope share. It ends with the last of them: engines that nobody asks any more hold gigabytes."""

ALONE = (
    *(f"tests/server/{folder}/" for folder in (*_SCRIPTED, "identity", "models", "options", "routes", "siblings")),
    *("tests/server/speculation/test_speculator.py", "tests/server/vllm/test_seams.py"),
    *("tests/server/app/test_restart.py", "tests/server/app/test_victim.py", "tests/server/launch/test_api_servers.py"),
    *("tests/server/inspector/test_page.py", "tests/server/inspector/test_browser.py"),
)
"""Places below those of a scope whose files share nothing: any process may run them, and the scope is the shorter."""

_DEAR = (
    *(*SCOPES, "tests/server/launch/test_api_servers.py", "tests/server/budget/test_templates.py"),
    *("tests/server/app/", "tests/engine/", "tests/simulator/", "tests/packaging/", "tests/bench/"),
)
"""What starts first where there are several processes: the longest. Short files fill the gaps at the end."""

SMOLLM2_SETTINGS: dict[str, Any] = {"max_model_len": 8192, "kv_cache_memory_bytes": 2**29}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse tests that share an id: of these xdist runs one, and nobody hears of the others.

    In pytest 9.2 an id is made of a function and its parameters, and schemathesis has one function for all operations.
    Here each operation gets an id of its own.
    """
    for item in items:
        operation = getattr(item, "operation_label", None)
        if operation is not None:
            item._id = item.id.with_params(operation)
    shared = [name for name, num in Counter(item.nodeid for item in items).items() if num > 1]
    if shared:
        raise pytest.UsageError(f"{len(shared)} ids are those of several tests: {shared[:3]}")
    for item in items:
        check_scope(scope_of(item.nodeid), item.nodeid, shared_fixtures(item))
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: rank_of(scope_of(item.nodeid)))


def pytest_collection(session: pytest.Session) -> None:
    """Little becomes garbage while tests are collected. Looking for it took a fifth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported and collected lives to the end: a million objects in which nobody looks for garbage again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def shared_fixtures(item: pytest.Item) -> list[str]:
    """The fixtures of a test that a conftest has. A test file's own fixture may have the name of a shared one."""
    found: dict[str, Any] = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return [name for name, fixtures in found.items() if fixtures[-1].func.__module__.endswith("conftest")]


def scope_of(nodeid: str) -> str:
    """What one process of xdist runs as a whole: the tests that share a server or an engine, else a file."""
    path = nodeid.partition("::")[0]
    places = [(len(place), scope) for scope, listed in SCOPES.items() for place in listed if path.startswith(place)]
    places += [(len(place), path) for place in ALONE if path.startswith(place)]
    return max(places)[1] if places else path


def rank_of(scope: str) -> int:
    return next((rank for rank, start in enumerate(_DEAR) if scope.startswith(start)), len(_DEAR))


def check_scope(scope: str, nodeid: str, fixtures: Collection[str]) -> None:
    """Refuse a test that would start a shared server or engine once more, in another process."""
    strange = [name for name in SCOPES if name in fixtures and name != scope]
    if strange:
        raise pytest.UsageError(f"{nodeid} uses {strange[0]} and runs beside {scope}. List its file in SCOPES.")


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Where scopes run as a whole, in a process of xdist, what one shares ends in front of the next."""
    if hasattr(item.config, "workerinput") and nextitem is not None:
        for name in ending_behind(item.nodeid, nextitem.nodeid):
            for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
                fixture.finish(item._request)  # type: ignore[attr-defined]


def ending_behind(nodeid: str, following: str) -> tuple[str, ...]:
    """The shared fixtures that no test needs between two that follow each other."""
    scope = scope_of(nodeid)
    return () if scope_of(following) == scope else SHARED_BY.get(scope, ())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With several processes: scopes stay together and start in the order in which they were sorted."""
    from xdist.scheduler import LoadScopeScheduling

    class ByEngine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    config.option.loadscopereorder = False
    return ByEngine(config, log)


@pytest.fixture(scope="session", autouse=True)
def models_inspected_here() -> Iterator[None]:
    """A process that has vLLM looks at a model's class itself, and writes down what servers would ask for.

    vLLM starts a process for each class that its cache does not know, so that nobody touches a CUDA device too early.
    That process imports vLLM: ten seconds of CPU for each of the suite's families. Here is no device.
    """
    registry: Any = sys.modules.get("vllm.model_executor.models.registry")
    if registry is None:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_run_in_subprocess", lambda inspect: inspect())
        registry.ModelRegistry.models["LlamaForCausalLM"].inspect_model_cls()
        yield


@pytest.fixture(scope="session")
def soak_report() -> Iterator[SoakReport]:
    """What the phases of `make soak` found. It is written when the last one has ended."""
    report = SoakReport()
    yield report
    report.write()


@pytest.fixture(scope="session")
def smollm2_folder() -> Path:
    """The prepared model. The first use downloads and converts it."""
    return smollm2.prepare()


@pytest.fixture(scope="session")
def smollm2_engine(smollm2_folder: Path) -> Iterator[Engine]:
    """SmolLM2 with the plugin, in a process of its own. The process that hands out the tests never imports vLLM."""
    from tests.support.engine.engine import start_engine

    with start_engine(smollm2_folder, plugin={}, own_process=True, **SMOLLM2_SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="session")
def stock_engine(smollm2_folder: Path) -> Iterator[Engine]:
    """The same model and settings without the plugin."""
    from tests.support.engine.engine import start_engine

    with start_engine(smollm2_folder, plugin=None, own_process=True, **SMOLLM2_SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="session")
def server(smollm2_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Base URL of the server that `make serve` starts, on another port, with a small KV cache and short summaries.

    What is precomputed may take the place of any other KV. Tests before have filled the cache a moment ago.
    By its calibration `auto` moves everything. `precompute/test_harm_smollm2.py` alone asks for `auto`.
    """
    folder = tmp_path_factory.mktemp("server")
    shape = CalibratedShape.of_config(json.loads((smollm2_folder / "config.json").read_text(encoding="utf-8")))
    every = folder / "every.json"
    every.write_text(Calibration("smollm2", shape, EVERY, LEVELS[EVERY]).as_json({}), encoding="utf-8")
    engine = json.dumps({"kv_connector_extra_config": {"precompute_min_age_s": 0}})
    flags = ["--max-summary-tokens", "48", "--kv-transfer-config", engine, "--calibration", str(every)]
    with running_server("smollm2", folder / "server.log", flags) as url:
        yield url


@pytest.fixture(scope="session")
def scripted_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the scripted server writes: `data`, `server.log`, `server.pid`."""
    return tmp_path_factory.mktemp("scripted")


@pytest.fixture(scope="session")
def scripted_server(scripted_folder: Path) -> Iterator[str]:
    """Base URL of a server whose model says what the test wrote down (see `benchmarks/models/scripted_model.py`).

    A request without a script may name an errand, and the model does it (see `tests/support/clients/errand.py`).
    """
    from acmserve.bench.learner.sessions import SUITE_FILE

    suite = scripted_folder / "mine.json"
    suite.write_text(json.dumps(OWN_SUITE), encoding="utf-8")
    flags = [*FLAGS, "--enable-scale-out", "--trust-request-chat-template"]
    flags += ["--logits-processors", "tests.support.clients.errand_model:ErrandOrScript"]
    flags += ["--suite", f"{suite},{SUITE_FILE}", "--data-dir", str(scripted_folder / "data")]
    with running_server(
        write_model(scripted_folder / "model"), scripted_folder / "server.log", flags, tiny=True
    ) as url:
        yield url
