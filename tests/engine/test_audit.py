"""vLLM's decoder classes, measured: four of them in the suite, all by `make audit`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from acmserve.bench.harness.machine import describe_machine
from acmserve.bench.provenance.kept_file import write_whole
from tests.bench.report.test_recorded_bars import MAX_SECONDS, MIN_SHARE_RIGHT
from tests.support.engine.audit import MIXED, REFUSED, STILL, TURNED, Judgement, architectures, judge

SHORT = {
    "LlamaForCausalLM": TURNED,
    "GptOssForCausalLM": TURNED,
    "Gemma3ForCausalLM": TURNED,
    "Cohere2ForCausalLM": MIXED,
    "BloomForCausalLM": STILL,
    "OPTForCausalLM": REFUSED,
}
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "audit.json"


@pytest.mark.parametrize("architecture", SHORT)
def test_a_class_is_judged_right(architecture: str, tmp_path: Path) -> None:
    judgement = judge(architecture, dict(architectures())[architecture], tmp_path)
    assert judgement.found == judgement.expected == SHORT[architecture], judgement.reason


@pytest.mark.skipif("ACMSERVE_AUDIT" not in os.environ, reason="builds every class of vLLM: `make audit`")
def test_all_classes(tmp_path: Path) -> None:
    machine = describe_machine()
    found = [judge(name, model_type, tmp_path / name) for name, model_type in architectures()]
    built = [judgement for judgement in found if judgement.found is not None]
    num_right = sum(judgement.is_right for judgement in built)
    write(machine, found, len(built), num_right)
    assert 2 * len(built) > len(found), [judgement.reason for judgement in found if judgement.found is None]
    assert num_right >= MIN_SHARE_RIGHT * len(built), [j for j in built if not j.is_right]
    wrongly_moved = [j for j in built if j.expected == REFUSED and j.found != REFUSED]
    assert wrongly_moved == []
    if "ACMSERVE_AUDIT_SECONDS" in os.environ:
        assert max(judgement.seconds for judgement in built) < MAX_SECONDS


def write(machine: dict[str, Any], found: list[Judgement], num_built: int, num_right: int) -> None:
    counts = {"classes": len(found), "built": num_built, "right": num_right}
    report = {"machine": machine, **counts, "judgements": [judgement.as_json() for judgement in found]}
    write_whole(RESULTS, json.dumps(report, indent=2) + "\n")
