"""A loop of your own: one tool, and results that were read are folded, so that the context stays small.

    python examples/plain_loop.py http://localhost:8000 "Which ports do the files of this folder name?"

The loop sends its whole history each time, and the server replays the folds on it. What stands behind a fold is moved.
The key of the server is taken from ACMSERVE_API_KEY.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from typing import Any

from openai import OpenAI

from acmserve.client import SessionHandle, receipt_of

KEY = os.environ.get("ACMSERVE_API_KEY", "unused")
KEEP, MIN_CHARS, MAX_CHARS = 2, 400, 8000
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


def run(arguments: str) -> str:
    """What the command prints, errors included."""
    try:
        command = str(json.loads(arguments)["command"])
    except (ValueError, KeyError, TypeError) as error:
        return f"Error: the arguments must be {{'command': '...'}}: {error}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr)[:MAX_CHARS] or "(no output)"


def fold_old_results(session: SessionHandle, messages: list[dict[str, Any]], folded: set[int]) -> None:
    """Fold all long results but the last ones, of the messages that were sent. Both sides number them alike."""
    results = [index for index, message in enumerate(messages) if message["role"] == "tool"][:-KEEP]
    new = [index for index in results if index not in folded and len(messages[index]["content"]) >= MIN_CHARS]
    if new:
        done = session.fold(*((index, index + 1) for index in new), fidelity="reuse")
        print(f"folded {len(new)}: {done.tokens_before} -> {done.tokens_after} tokens")
        folded.update(new)


def main(url: str, task: str) -> None:
    """Ask until the model calls nothing more."""
    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    model = client.models.list().data[0].id
    messages: list[dict[str, Any]] = [{"role": "user", "content": task}]
    folded: set[int] = set()
    with SessionHandle(url, f"plain-{uuid.uuid4().hex[:8]}", api_key=KEY) as session:
        while True:
            answer: Any = client.chat.completions.create(
                model=model,
                messages=messages,  # type: ignore[arg-type]
                tools=[TOOL],
                max_tokens=512,
                extra_body=session.extra_body(fidelity="reuse"),
            )
            receipt, message = receipt_of(answer), answer.choices[0].message
            if receipt is not None:
                kept, moved, computed = receipt.kept_tokens, receipt.moved_tokens, receipt.computed_tokens
                print(f"prompt {receipt.prompt_tokens}: kept {kept}, moved {moved}, computed {computed}")
            if not message.tool_calls:
                break
            fold_old_results(session, messages, folded)
            messages.append(message.model_dump(exclude_none=True))
            messages += [
                {"role": "tool", "tool_call_id": call.id, "content": run(call.function.arguments)}
                for call in message.tool_calls
            ]
    print(message.content)


if __name__ == "__main__":
    main(sys.argv[1].removesuffix("/v1"), sys.argv[2])
