"""What the commands of a step do, as far as the step itself says: they write, they only view, or nobody knows.

    bash({"command": "sed -i s/a/b/ f"})                writes
    shell({"command": ["bash", "-lc", "cat > f <<..."]})  writes
    str_replace_editor({"command": "view", ...})        call 0 only views
    read({"path": "f"})                                 nothing known: its name decides
    "I edit. ```bash\\nmv a b\\n```"                       writes, where the step has no calls

Any tool may run commands, under any name, so the argument decides: `command`, `cmd` or `commands` are for a shell, and
`code` is a script. A list is what is run, word by word, and under `commands` one command each. Editors with one tool
for everything say in `command` what they do.

Decision: it is read once, when a message is taken in, and of the texts nothing is kept. So a redaction need not look
here. Of long arguments only the beginning is read, where a key counts at any depth. Of a command in the assistant's
text, `writes` says what it would do. Whether it was run, the observation behind it tells.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from acmserve.context.transcript.call_arguments import unescaped
from acmserve.context.transcript.commands.shell_writes import MAX_CHARS, script_writes, writes
from acmserve.context.transcript.parts import Parts, Role

MAX_ARGUMENT_CHARS = 2 * MAX_CHARS
"""Where arguments are longer, only so much of them is read. The escapes of JSON take room, too."""
_MAX_TEXT_CHARS = 8 * MAX_CHARS
_MAX_WORDS = 64
_SHELL_KEYS = ("command", "cmd", "commands")
_CODE_KEY = "code"
VIEW = "view"
EDITS = frozenset({"create", "delete", "insert", "rename", "str_replace", "undo_edit"})
"""Commands of editors that change a file. `view` changes none."""
_LITERAL = re.compile(r'"((?:[^"\\]++|\\.)*+)"?(\s*+:)?+', re.DOTALL)
_BLOCK = re.compile(
    r"^[ \t]*```[ \t]*(?:mswea_bash_command|bash|shell|sh|zsh)[ \t]*\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)",
    re.DOTALL | re.MULTILINE | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class CommandEffect:
    """Whether a step has a command that writes, and the numbers of its calls that only view something."""

    writes: bool = False
    viewed: frozenset[int] = frozenset()


NOTHING_KNOWN = CommandEffect()
_WRITES = CommandEffect(writes=True)


def effects_of(batch: Iterable[Parts]) -> list[CommandEffect]:
    """What the commands of each message do, in order."""
    return [_effect(parts) if parts.role is Role.ASSISTANT else NOTHING_KNOWN for parts in batch]


def _effect(parts: Parts) -> CommandEffect:
    if not parts.calls:
        return _WRITES if any(map(_text_writes, parts.texts)) else NOTHING_KNOWN
    does_write = False
    viewed: set[int] = set()
    for number, call in enumerate(parts.calls):
        for key, value in _commands(call.arguments):
            if value == VIEW:
                viewed.add(number)
            elif not does_write:
                does_write = _value_writes(key, value)
    if viewed:
        return CommandEffect(does_write, frozenset(viewed))
    return _WRITES if does_write else NOTHING_KNOWN


def _text_writes(text: str) -> bool:
    """Whether a block of shell commands in a text writes."""
    return "```" in text and any(writes(block[1]) for block in _BLOCK.finditer(text, 0, _MAX_TEXT_CHARS))


def _commands(arguments: object) -> Iterator[tuple[str, object]]:
    """The arguments of a call that are commands: (key, value)."""
    if isinstance(arguments, str) and len(arguments) > MAX_ARGUMENT_CHARS:
        arguments = _beginning(arguments[:MAX_ARGUMENT_CHARS])
    elif isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError):
            return
    if isinstance(arguments, Mapping):
        for key in (*_SHELL_KEYS, _CODE_KEY):
            if key in arguments:
                yield key, arguments[key]


def _beginning(raw: str) -> dict[str, object]:
    """The commands in the beginning of a JSON text. Several strings behind one key are a list."""
    found: dict[str, list[str]] = {}
    key = ""
    for literal in _LITERAL.finditer(raw):
        if literal[2]:
            key = literal[1]
        elif key in _SHELL_KEYS or key == _CODE_KEY:
            found.setdefault(key, []).append(unescaped(literal[1]))
    return {key: texts[0] if len(texts) == 1 else texts for key, texts in found.items()}


def _value_writes(key: str, value: object) -> bool:
    if isinstance(value, str):
        return script_writes(value) if key == _CODE_KEY else value in EDITS or writes(value)
    if not isinstance(value, list | tuple) or key == _CODE_KEY:
        return False
    words = [word[:MAX_CHARS] for word in value[:_MAX_WORDS] if isinstance(word, str)]
    return any(map(writes, words if key == "commands" else [shlex.join(words)]))
