"""`acmserve eval` against a real server: every way is accepted, receipts add up, tools are counted, nothing is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from acmserve.bench.eval.main import parser, samples_of
from acmserve.bench.eval.play import Play
from acmserve.bench.eval.target import Target
from acmserve.bench.eval.tasks.task import EvalSample
from acmserve.cli import main as cli
from tests.support import http
from tests.support.server.scripts import new_session, tool_call

SMALL = ["--samples", "1", "--seed", "3"]


def sample_of(*arguments: str) -> EvalSample:
    return samples_of(parser().parse_args(["http://nowhere", *SMALL, *arguments]))[0]


def play(url: str, folder: Path, *arguments: str) -> dict[str, Any]:
    assert cli(["eval", url, "--output", str(folder), *SMALL, *arguments]) == 0
    report: dict[str, Any] = json.loads((folder / "results.json").read_text())
    return report


def test_every_way_is_played(scripted_server: str, tmp_path: Path) -> None:
    ways = "baseline,reads,tools,tools-guided,budget:chain,budget:recency,budget:cwl,branches,map"
    tasks = ["--tasks", "oolong", "--set", "oolong.tokens=900", "--budget", "80%"]
    report = play(scripted_server, tmp_path, "--ways", ways, *tasks)
    assert report["has_acm"]
    assert report["skipped"] == {"tools-guided": "the paper has no prompt for this task"}
    rows = {row["way"]: row for row in report["rows"]}
    assert {row["num_samples"] for row in rows.values()} == {4}
    assert {row["num_refused"] for row in rows.values()} == {0}
    assert {row["score"] for row in rows.values()} == {0.0}
    for row in rows.values():
        assert row["kept_tokens"] + row["moved_tokens"] + row["computed_tokens"] == row["prompt_tokens"] > 0
    assert rows["baseline"]["kept_tokens"] > 0
    assert rows["budget:recency"]["prompt_tokens"] < rows["reads"]["prompt_tokens"]
    assert rows["budget:recency"]["num_unmet"] == 0
    assert rows["budget:cwl"]["num_unmet"] == 0
    assert rows["budget:cwl"]["prompt_tokens"] < rows["reads"]["prompt_tokens"]
    assert rows["map"]["update_tokens"][0] > 0
    assert rows["tools"]["update_tokens"] is None
    target = Target.find(scripted_server, None, None, {})
    salts = [Play(target, sample_of(*tasks), way, report["run"], 0).salt for way in rows]
    target.close()
    assert len(set(salts)) == len(rows)
    for salt in salts:
        assert http.get(f"{scripted_server}/v1/acm/sessions", headers={"X-Cache-Salt": salt}).json()["data"] == []


POLICIES = ("chain", "recency", "cwl", "pi-cwl", "compact", "clear_tool_uses")


def test_a_share_comes_on_top_of_what_no_policy_may_take(scripted_server: str, tmp_path: Path) -> None:
    """Of a short text, question and tools are more than half. A budget in tokens below them is broken, and says so."""
    ways = ",".join(["reads", *(f"budget:{policy}" for policy in POLICIES)])
    arguments = ["--tasks", "gsm-infinite", "--set", "gsm-infinite.tokens=400", "--ways", ways]
    reports = {name: play(scripted_server, tmp_path / name, *arguments, "--budget", name) for name in ("60%", "100")}
    shared, fixed = (
        {row["way"]: row for row in report["rows"] if row["task"] == "gsm-infinite"} for report in reports.values()
    )
    assert shared.keys() == fixed.keys() == {"reads", *(f"budget:{policy}" for policy in POLICIES)}
    for policy in POLICIES:
        row = shared[f"budget:{policy}"]
        assert (row["num_unmet"], row["num_refused"]) == (0, 0), policy
        if policy in ("chain", "recency", "clear_tool_uses"):
            assert 0.5 < row["prompt_tokens"] / shared["reads"]["prompt_tokens"] < 0.9, policy
        assert fixed[f"budget:{policy}"]["num_unmet"] == fixed["reads"]["num_samples"], policy


def test_calls_are_counted_and_a_right_answer_scores(scripted_server: str, tmp_path: Path) -> None:
    arguments = ["--tasks", "longbench-v2", "--set", "longbench-v2.tokens=300", "--ways", "tools"]
    sample = sample_of(*arguments)
    calls = [tool_call("search_context", query="left a box"), tool_call("search_context", query="")]
    script = {"script_id": new_session(), "script": [*calls, f"The correct answer is ({sample.gold})"]}
    report = play(scripted_server, tmp_path, *arguments, "--request", json.dumps({"vllm_xargs": script}))
    (row,) = report["rows"]
    assert row["score"] == 1
    assert row["tools"] == {"search_context": 2}
    assert row["num_tool_errors"] == 1
    first, second, third = (sum(counts[:3]) for counts in report["records"][0]["completions"])
    assert first < second < third


def test_agents_that_run_code_work_in_sessions_and_leave_none(scripted_server: str, tmp_path: Path) -> None:
    said = {"vllm_xargs": {"script_id": new_session(), "script": ["FINAL(Label: tree)"]}}
    tasks = ["--tasks", "oolong,terminal", "--set", "oolong.tokens=900", "--set", "terminal.tasks=2"]
    ways = ["--ways", "rlm,rlm-map,shell,shell:recency"]
    report = play(scripted_server, tmp_path, *tasks, *ways, "--request", json.dumps(said), "--budget", "2000")
    rows = {(row["task"], row["way"]): row for row in report["rows"]}
    assert {row["num_refused"] for row in rows.values()} == {0}
    assert rows["oolong", "rlm"]["num_requests"] == rows["oolong", "rlm-map"]["num_requests"] == 4
    assert rows["oolong", "rlm"]["update_tokens"] is None
    assert rows["oolong", "rlm-map"]["update_tokens"][0] > 0
    assert rows["oolong", "rlm-map"]["num_updates"] == rows["oolong", "rlm-map"]["num_samples"] == 4
    assert "num_updates" not in rows["oolong", "rlm"]
    assert rows["terminal", "shell:recency"]["num_requests"] == 2
    target = Target.find(scripted_server, None, None, {})
    for task in ("oolong", "terminal"):
        sample = next(one for one in samples_of(parser().parse_args(["http://n", *SMALL, *tasks])) if one.task == task)
        for way in ("rlm-map", "shell:recency"):
            salt = Play(target, sample, way, report["run"], 0).salt
            assert http.get(f"{scripted_server}/v1/acm/sessions", headers={"X-Cache-Salt": salt}).json()["data"] == []
    target.close()


def test_a_command_whose_output_was_taken_out_is_a_reexploration(scripted_server: str, tmp_path: Path) -> None:
    """A command runs three times: with its output shown, and behind others, for which the budget needs the room."""
    again, others = "seq 100 199", [f"seq {n}001 {n}100" for n in (1, 2, 3)]
    lines = [*(f"```bash\n{command}\n```" for command in (again, again, *others, again)), "FINAL(done)"]
    tasks = ["--tasks", "terminal", "--set", "terminal.tasks=1", "--budget", "2400"]
    found = {}
    for way in ("shell-isolated", "shell:recency", "shell:clear_tool_uses"):
        said = {"vllm_xargs": {"script_id": new_session(), "script": lines}}
        asked = [*tasks, "--ways", way, "--request", json.dumps(said)]
        (row,) = play(scripted_server, tmp_path / way.replace(":", "-"), *asked)["rows"]
        assert (row["num_requests"], row["num_refused"], row["num_unmet"]) == (7, 0, 0)
        found[way] = row["repeats"]
    elsewhere = {"num_shown_elsewhere": 0, "num_reexplored_elsewhere": 0}
    evicted = {"num_commands": 6, "num_repeats_shown": 1, "num_reexplored": 1, **elsewhere}
    assert found == {
        "shell-isolated": evicted | {"num_repeats_shown": 2, "num_reexplored": 0},
        "shell:recency": evicted,
        "shell:clear_tool_uses": evicted,
    }
