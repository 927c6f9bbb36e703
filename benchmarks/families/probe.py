"""One family in this process: its class is started by the real engine, and its context is folded.

    doctor          what is said of a model that does not start: its class is built small, or else its cache is judged
    fold            served under `reuse`, then folded:  kept, moved, computed, and why not
    exact           the same under `exact`, beside a computation of nothing but the folded prompt
    deep oracle     one layer of each kind attends:     `reuse` beside `exact`, beside a move without its copies, and
                                                        beside one of keys and states as they were.
                                                        Not in a cache of fp8, which rounds a turned key
    told            of a model that starts: what doctor says beforehand, and what the engine found

A crash of vLLM ends this process and nothing else. What is found is written after each part, so a crash keeps it.
"""

from __future__ import annotations

import json
import math
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from acmserve.bench.families.edit import FOLDABLE, FOLDED, SERVED, START
from acmserve.bench.families.family import CONVOLUTION, INDEX, POOLS, VOCAB_SIZE, Family, Settings
from acmserve.bench.families.registry import FAMILIES
from acmserve.bench.families.stand_ins import LATENT_PREFIXES, REFERENCE_BACKEND, put_in_place
from acmserve.bench.harness.engine import Ask, EngineReply, LocalEngine
from acmserve.bench.provenance.kept_file import write_whole
from acmserve.errors import AcmError

ROW = "row.json"
MAX_MODEL_LEN = 4096
KV_BYTES = 128 * 2**20
NO_NUMBER = 1e9
EXACT = 1e-3
"""By how much two computations in float32 may differ."""


def run_probe(number: int, kind: str, folder: Path) -> None:
    """Find out about one family, in a process that does nothing else. What libraries print goes to a file there."""
    with (folder / "log").open("w", encoding="utf-8") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    (family,) = (one for one in FAMILIES if one.number == number)
    settings = family.settings(kind)
    assert settings is not None
    _Probe(family, settings, folder).run()
    os._exit(0)  # threads of a library may wait for ever


class _Probe:
    """Finds out one part after the other and writes each down."""

    def __init__(self, family: Family, settings: Settings, folder: Path) -> None:
        self._family, self._settings, self._folder = family, settings, folder
        self._stand_ins = family.stand_ins_for(settings)
        self._model = family.write(folder / "model", settings)
        self._arguments = dict(settings.arguments)
        if LATENT_PREFIXES in self._stand_ins:
            self._arguments |= REFERENCE_BACKEND
            if "speculative_config" in self._arguments:
                self._arguments["speculative_config"] = {**self._arguments["speculative_config"], **REFERENCE_BACKEND}
        if settings.drafter is not None:
            drafter = str(self._model / "drafter")
            self._arguments["speculative_config"] = {**self._arguments["speculative_config"], "model": drafter}
        self._row: dict[str, Any] = {}

    def run(self) -> None:
        """All parts that can be run. Who started this process has prepared its environment."""
        put_in_place(self._stand_ins)
        look_at_classes_here()
        begin = time.monotonic()
        engine = self._part("start", self._start)
        if engine is None:
            failed = self._row["failed"]
            if self._part("doctor", self._doctor) is None and self._family.cache:
                self._part("doctor", lambda: judge_cache(self._family.cache))
            self._row["failed"] = failed
        else:
            self._part("groups", lambda: groups_of(engine))
            if self._part("fold", lambda: fold(engine)) is None:
                failed = self._row["failed"]
                self._part("doctor", lambda: abilities_of(engine))
                self._row["failed"] = failed
            self._part("exact", lambda: exact(engine))
            if (self._row.get("fold") or {}).get("moved") and not self._settings.rounds:
                self._part("oracle", lambda: deep_oracle(engine))
            failed = self._row.pop("failed", None)
            self._part("told", lambda: self._told(engine))
            self._row.pop("failed", None)  # doctor leaves it to the engine then, and says so
            self._row |= {} if failed is None else {"failed": failed}
        self._row["seconds"] = round(time.monotonic() - begin, 1)
        self._write()

    def _part(self, name: str, find: Callable[[], Any]) -> Any:
        """What `find` gives, None where it fails. The failure is told in the words of vLLM."""
        try:
            found = find()
        except Exception as error:  # noqa: BLE001 -- whatever a class raises is what the table tells
            traceback.print_exc()
            self._row[name], self._row["failed"] = None, {"part": name, "reason": first_words(error)}
            self._write()
            return None
        self._row[name] = True if isinstance(found, LocalEngine) else found
        self._write()
        return found

    def _write(self) -> None:
        write_whole(self._folder / ROW, json.dumps(self._row))

    def _doctor(self) -> dict[str, Any]:
        from acmserve.engine.config import engine_config
        from acmserve.engine.worker.model_verdict import judge_model

        settings = {"max_model_len": MAX_MODEL_LEN, "dtype": self._family.dtype, **self._arguments}
        verdict = judge_model(str(self._model), **settings, **engine_config())
        return {"refusal": verdict.refusal, "keys": verdict.describe_keys(), "sparse": verdict.sparse}

    def _told(self, engine: LocalEngine) -> dict[str, str | None]:
        """Why nothing is moved: what doctor says without weights, and what the engine found. None where KV moves."""
        return {"doctor": self._doctor()["refusal"], "engine": abilities_of(engine)["refusal"]}

    def _start(self) -> LocalEngine:
        from acmserve.bench.families.random_weights import LOAD_FORMAT

        return LocalEngine(
            self._model,
            with_acmserve=True,
            max_model_len=MAX_MODEL_LEN,
            load_format=LOAD_FORMAT,
            skip_tokenizer_init=True,
            max_logprobs=VOCAB_SIZE,
            kv_cache_memory_bytes=KV_BYTES,
            **{"dtype": self._family.dtype} | self._arguments,
        )


def judge_cache(kind: str) -> dict[str, Any]:
    """What acmserve says of a model with such a cache, as vLLM's class would declare it. Nothing is built."""
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec, SparseCacheRole

    from acmserve.engine.worker.cache_kind import why_never

    facts: dict[str, Any] = {"block_size": 64, "num_kv_heads": 1, "dtype": torch.bfloat16}
    specs = {
        INDEX: lambda: MLAAttentionSpec(head_size=128, cache_role=SparseCacheRole.INDEXER, **facts),
        POOLS: lambda: MLAAttentionSpec(head_size=576, tokens_per_state=4, **facts),
    }
    return {"refusal": why_never([specs[kind]()]), "keys": "not measured", "sparse": None}


def look_at_classes_here() -> None:
    """vLLM starts a process for each class to learn what it supports. This process does nothing else with them."""
    from vllm.model_executor.models import registry

    lazy: Any = registry._LazyRegisteredModel
    lazy.inspect_model_cls = lambda entry: registry._ModelInfo.from_model_cls(entry.load_model_cls())


def groups_of(engine: LocalEngine) -> list[dict[str, Any]]:
    """The KV cache groups of the engine: kind, tokens in a block, layers, and the window where there is one."""
    core = engine.llm.llm_engine.engine_core.engine_core
    return [
        {
            "kind": type(group.kv_cache_spec).__name__,
            "block_size": group.kv_cache_spec.block_size,
            "layers": len(group.layer_names),
            "window": getattr(group.kv_cache_spec, "sliding_window", None),
        }
        for group in core.scheduler.kv_cache_config.kv_cache_groups
    ]


def abilities_of(engine: LocalEngine) -> dict[str, Any]:
    """What acmserve said of the model when it had started: for one that vLLM starts and cannot run here."""
    connector = engine.llm.llm_engine.engine_core.engine_core.scheduler.connector
    return {"refusal": connector.abilities.move_refusal, "keys": "not measured", "sparse": None}


def fold(engine: LocalEngine, salt: str = "fold") -> dict[str, Any]:
    """Serve and fold under `reuse`. The counts of the receipt, and why nothing more was moved."""
    _ask(engine, SERVED, salt, "reuse")
    receipt = _ask(engine, FOLDED, salt, "reuse").receipt
    assert receipt is not None
    return _counts(receipt)


def exact(engine: LocalEngine) -> dict[str, Any]:
    """Serve and fold under `exact`. `distance` is from the folded prompt computed alone, by a request of no session.

    `stock_distance` is that of a prefix hit of vLLM without acmserve's doing, where it is worth asking for.
    """
    _ask(engine, SERVED, "exact", "exact")
    folded = _ask(engine, FOLDED, "exact", "exact")
    fresh = _ask(engine, FOLDED, "fresh", None)
    assert folded.receipt is not None
    found = {**_counts(folded.receipt), "distance": distance(folded, fresh), "stock_distance": 0.0}
    if found["distance"] > EXACT:
        _ask(engine, FOLDED[:START], "stock", None)
        found["stock_distance"] = distance(_ask(engine, FOLDED, "stock", None), fresh)
    return found


def deep_oracle(engine: LocalEngine) -> list[dict[str, Any]]:
    """For one layer of each kind that attends alone: `reuse` beside `exact`, with two controls.

    `control` lacks the copies of its moves, and `stale` has them as the source has them.
    """
    from acmserve.bench.families.oracle import (
        attending,
        kind_of,
        left_as_it_was,
        mlps_of,
        output_projections,
    )
    from acmserve.engine.worker.kv_mover import KVMover

    core = engine.llm.llm_engine.engine_core.engine_core
    config = core.vllm_config
    layers = config.compilation_config.static_forward_context
    (projections,) = engine.llm.apply_model(lambda model: output_projections(model, layers))
    (mlps,) = engine.llm.apply_model(mlps_of)
    kinds: dict[str, str] = {}
    for group in core.scheduler.kv_cache_config.kv_cache_groups:
        for name in group.layer_names:
            if name in projections:
                kinds.setdefault(kind_of(layers[name].get_kv_cache_spec(config)), name)
    rows = []
    for kind, layer in kinds.items():
        asked = FOLDED[: end_of_move(engine) + 1] if kind == CONVOLUTION else FOLDED
        with attending(projections, layer, mlps):
            _ask(engine, SERVED, f"{kind} moved", "reuse")
            moved = _ask(engine, asked, f"{kind} moved", "reuse")
            fresh = _ask(engine, asked, f"{kind} fresh", None)
            _ask(engine, SERVED, f"{kind} control", "reuse")
            with mock.patch.object(KVMover, "carry_out"):
                control = _ask(engine, asked, f"{kind} control", "reuse")
            _ask(engine, SERVED, f"{kind} stale", "reuse")
            with left_as_it_was():
                stale = _ask(engine, asked, f"{kind} stale", "reuse")
        assert moved.receipt is not None
        answers = {"distance": moved, "control": control, "stale": stale}
        found = {name: distance(answer, fresh) for name, answer in answers.items()}
        rows.append({"kind": kind, "moved": moved.receipt["moved_tokens"], **found})
    return rows


def end_of_move(engine: LocalEngine) -> int:
    """The token of the folded prompt that follows what is moved."""
    _ask(engine, SERVED, "end", "reuse")
    receipt = _ask(engine, FOLDED, "end", "reuse").receipt
    assert receipt is not None
    last = receipt["moves"][-1]
    return int(last["dst_start"] + last["num_tokens"])


def distance(one: EngineReply, other: EngineReply) -> float:
    """The largest difference of two log-probabilities of the first token. `NO_NUMBER` where one is none."""
    found = [abs(one.first_logprobs[token] - other.first_logprobs[token]) for token in range(VOCAB_SIZE)]
    return max(found) if all(map(math.isfinite, found)) else NO_NUMBER


def first_words(error: BaseException) -> str:
    """What an error says in a line, of the error that is behind it."""
    while isinstance(error, AcmError) and error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line.removeprefix("Value error, ").partition(" [type=")[0] for line in lines if "Value error, " in line]
    return f"{type(error).__name__}: {(said or lines or [''])[0]}".rstrip(": ")[:300]


def _ask(engine: LocalEngine, tokens: tuple[int, ...], salt: str, fidelity: str | None) -> EngineReply:
    """One token. Without a fidelity the request has no session."""
    session = None if fidelity is None else salt
    acm = {"foldable": FOLDABLE} if tokens is SERVED else {}
    return engine.ask(Ask(tokens, salt, session, fidelity or "exact", acm=acm, num_logprobs=VOCAB_SIZE))


def _counts(receipt: dict[str, Any]) -> dict[str, Any]:
    """What was done with the tokens of a prompt."""
    names = ("kept", "moved", "computed")
    return {name: receipt[f"{name}_tokens"] for name in names} | {"reason": receipt["fallback_reason"]}
