"""A coding agent that tries several ideas at once, each in a branch and in a copy of the folder.

    python examples/coding_agent.py http://localhost:8000 "Make the tests pass." "python -m pytest -q" \
        "Mend the parser." "Write the parser anew."

The check decides: the first idea whose copy passes is returned to the conversation, and its files come back. A branch
begins as the conversation is, so nothing of it is computed again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openai import OpenAI

from acmserve.client import BranchHandle, SessionHandle, receipt_of

KEY = os.environ.get("ACMSERVE_API_KEY", "unused")
MAX_STEPS, MAX_CHARS = 40, 8000
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "bash",
        "description": "Run a command in the folder of the project.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}


class Coder:
    """The loop of one conversation in one folder."""

    def __init__(self, url: str) -> None:
        self.client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
        self.model = self.client.models.list().data[0].id

    def work(self, session: SessionHandle, history: list[dict[str, Any]], folder: Path) -> str:
        """Answer the last message. `history` gets what was said."""
        for _ in range(MAX_STEPS):
            answer: Any = self.client.chat.completions.create(
                model=self.model,
                messages=history,  # type: ignore[arg-type]
                tools=[TOOL],
                max_tokens=1024,
                extra_body=session.extra_body(fidelity="reuse"),
            )
            receipt, message = receipt_of(answer), answer.choices[0].message
            if receipt is not None:
                print(f"{session.session_id}: {receipt.kept_tokens} of {receipt.prompt_tokens} tokens kept")
            history.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return str(message.content or "")
            for call in message.tool_calls:
                result = run(call.function.arguments, folder)
                history.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return "I ran out of steps."


def run(arguments: str, folder: Path) -> str:
    """What the command prints, errors included."""
    try:
        command = str(json.loads(arguments)["command"])
    except (ValueError, KeyError, TypeError) as error:
        return f"Error: the arguments must be {{'command': '...'}}: {error}"
    done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr)[:MAX_CHARS] or "(no output)"


def main(url: str, task: str, check: str, ideas: list[str]) -> None:
    """Talk about the task, try every idea, and go on with the one that passes."""
    coder, project = Coder(url), Path.cwd()
    history: list[dict[str, Any]] = [{"role": "user", "content": task}]
    with (
        SessionHandle(url, f"coder-{uuid.uuid4().hex[:8]}", api_key=KEY) as session,
        tempfile.TemporaryDirectory() as place,
    ):
        print(coder.work(session, history, project))
        branches = [session.branch(idea[:60], idea) for idea in ideas]

        def attempt(branch: BranchHandle) -> tuple[str, Path, bool]:
            """The branch has the conversation, its task, and a copy of the folder."""
            copy = Path(place, branch.session_id.replace("/", "-"))
            shutil.copytree(project, copy)
            words = coder.work(branch, [*history, {"role": "user", "content": branch.made.prompt}], copy)
            return words, copy, subprocess.run(["bash", "-c", check], cwd=copy, check=False).returncode == 0

        with ThreadPoolExecutor() as pool:
            attempts = list(pool.map(attempt, branches))
        winner = next((index for index, (_, _, passes) in enumerate(attempts) if passes), None)
        for index, branch in enumerate(branches):
            if index != winner:
                branch.abandon()
        if winner is None:
            sys.exit("no idea passed the check")
        words, copy, _ = attempts[winner]
        branches[winner].give_back(words or "Done.")
        shutil.copytree(copy, project, dirs_exist_ok=True)
        history.append({"role": "user", "content": "Say in one sentence what was changed."})
        print(f"idea {winner + 1} passed:", coder.work(session, history, project))


if __name__ == "__main__":
    main(sys.argv[1].removesuffix("/v1"), sys.argv[2], sys.argv[3], sys.argv[4:])
