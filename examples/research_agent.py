"""A research agent that answers many questions about one folder, and keeps a context map of it.

    python examples/research_agent.py http://localhost:8000 docs/ "What is a fold?" "What does a restore cost?"

Each question is a session of its own. All of them read the map, which models write after the first questions: what the
folder is, and what was found in it. Answers are streamed.
"""

from __future__ import annotations

import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

from openai import OpenAI

from acmserve.client import AcmAnswer, ReceiptStream, SessionHandle

KEY = os.environ.get("ACMSERVE_API_KEY", "unused")
MAX_STEPS, MAX_HITS, MAX_CHARS = 20, 20, 8000


def tool(name: str, description: str, parameter: str) -> Any:
    """A tool with one parameter."""
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    tool("find_text", "Find a text in all files: file, line, and the line itself.", "text"),
    tool("read_file", "Read one file.", "path"),
]


def find_text(folder: Path, text: str) -> str:
    """Lines that have the text."""
    hits: list[str] = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if text in line and len(hits) < MAX_HITS:
                hits.append(f"{path.relative_to(folder)}:{number}: {line.strip()[:200]}")
    return "\n".join(hits) or "Nothing was found."


def read_file(folder: Path, path: str) -> str:
    """The beginning of a file of the folder."""
    file = (folder / path).resolve()
    if not file.is_relative_to(folder.resolve()) or not file.is_file():
        return f"Error: there is no file {path!r} here."
    return file.read_text(errors="replace")[:MAX_CHARS]


def carry_out(folder: Path, name: str, arguments: str) -> str:
    """The result of a call, as the model reads it."""
    try:
        given = json.loads(arguments)
        return find_text(folder, given["text"]) if name == "find_text" else read_file(folder, given["path"])
    except (ValueError, KeyError, TypeError) as error:
        return f"Error: the arguments are wrong: {error}"


def ask(client: OpenAI, model: str, session: SessionHandle, folder: Path, question: str) -> AcmAnswer | None:
    """Answer one question. The last `acm` says which version of the map was read."""
    system = "You answer questions about a folder of files. Look first, and name the files in your answer."
    messages: list[Any] = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    acm = None
    for _ in range(MAX_STEPS):
        with client.chat.completions.stream(
            model=model,
            messages=messages,
            tools=TOOLS,
            max_tokens=512,
            extra_body=session.extra_body(fidelity="reuse", map={"external_context_id": folder.resolve().name}),
        ) as events:
            stream = ReceiptStream(events)
            for event in stream:
                if event.type == "content.delta":
                    print(event.delta, end="", flush=True)
            message = events.get_final_completion().choices[0].message
        acm = stream.acm or acm
        messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
        for call in message.tool_calls or ():
            content = carry_out(folder, call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        if not message.tool_calls:
            break
    print()
    return acm


def main(url: str, folder: Path, questions: list[str]) -> None:
    """Ask each question in a session of its own."""
    client = OpenAI(base_url=f"{url}/v1", api_key=KEY)
    model = client.models.list().data[0].id
    for question in questions:
        print(f"# {question}")
        with SessionHandle(url, f"research-{uuid.uuid4().hex[:8]}", api_key=KEY) as session:
            acm = ask(client, model, session, folder, question)
        if acm is not None and acm.map is not None:
            print(f"map {acm.map.external_context_id}: version {acm.map.version}, {acm.map.tokens} tokens")


if __name__ == "__main__":
    main(sys.argv[1].removesuffix("/v1"), Path(sys.argv[2]), sys.argv[3:])
