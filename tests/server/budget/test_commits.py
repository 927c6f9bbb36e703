"""`acm.commit` on the real engine: folds that come one a step cost what they cost at once, and the answer says so."""

from __future__ import annotations

from typing import Any

from openai import OpenAI

from tests.support import http
from tests.support.server.scripts import Answer, ask, log_lines, new_session, tool_call

NUM_FOLDS, NUM_FRAGMENTS = 4, 20
CUT = tool_call("fragment_context", start_marker="line 0:", end_marker="end of the log", num_fragments=NUM_FRAGMENTS)


def _edited(client: OpenAI, commit: str, *, at_once: bool) -> tuple[str, int, Answer, Answer]:
    """The session, what was computed for its folds, the answer that folded and the one behind it.

    A name in front keeps the runs from finding each other's prefixes.
    """
    session = new_session()
    log = log_lines(200)
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": f"{session} keeps the records of a valley."},
        {"role": "user", "content": f"The log:\n{log}\nend of the log. What was read in line 7?"},
    ]
    first = ask(client, session, messages, [CUT, "Cut."])
    messages += [first.message, {"role": "user", "content": "Fold what you can."}]
    folds = [tool_call("fold_fragment", fragment_id=name) for name in first.fragment_ids[:NUM_FOLDS]]
    script = [*(["".join(folds)] if at_once else folds), "Folded."]
    second = ask(client, session, messages, script, acm={"commit": commit, "fidelity": "exact"})
    messages += [second.message, {"role": "user", "content": "And line 9?"}]
    third = ask(client, session, messages, ["It was 81."])
    receipts = [*second.receipts[1:], third.receipts[0]]
    assert sum(operation["changed"] for operation in second.operations) == NUM_FOLDS
    return session, sum(receipt["computed_tokens"] for receipt in receipts), second, third


def test_one_fold_a_step_costs_what_all_at_once_cost(scripted_client: OpenAI, scripted_server: str) -> None:
    _, at_once, _, _ = _edited(scripted_client, "now", at_once=True)
    session, waited, answer, after = _edited(scripted_client, "cheapest", at_once=False)
    _, told_now, plain, _ = _edited(scripted_client, "now", at_once=False)
    assert waited <= 1.2 * at_once
    assert told_now > 2 * at_once
    waits = [len(step["commit"]["waiting"]) for step in answer.acm["steps"] if "commit" in step]
    assert waits
    assert waits == sorted(waits)
    assert answer.acm["commit"]["reason"] == "turn_end"
    assert "commit" not in plain.acm
    assert all("when that costs least" in operation["result"] for operation in answer.operations)
    assert after.receipts[0]["prompt_tokens"] < answer.receipts[-1]["prompt_tokens"]
    view = http.get(f"{scripted_server}/v1/acm/sessions/{session}/context").raise_for_status().json()
    shown = view["messages"][1]["message"]["content"]
    assert [fragment["state"] for fragment in view["fragments"]] == ["folded"] * NUM_FOLDS + ["visible"] * (
        NUM_FRAGMENTS - NUM_FOLDS
    )
    assert "line 0:" not in shown
    assert view["fragments"][0]["fragment_id"] in shown
