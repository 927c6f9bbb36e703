r"""Whether a shell command changes something, read off its text. Nothing is run, and nothing is looked up.

    writes('grep -n ">" a.py | head')        False, the sign is quoted
    writes("make 2>&1 > /dev/null")          False, the output goes nowhere
    writes("cd a && sed -i s/x/y/ b.py")     True
    writes("cat > b.py <<'EOF'\nx\nEOF")     True

A command writes where it redirects into a file, edits in place, or begins with a word of the tables below. It is also
looked for behind `sudo`, `xargs`, `find -exec` and `bash -c`, and in the body of a heredoc that a shell reads. A script
of another language counts where it says that it writes (`script_writes`). Everything else is taken to read: `make`,
`pytest`, a script in a file.

Decisions for doubtful texts, all of which may miss a write:

- `->` and `=>` are arrows, and `>` in a comparison (`[ a > b ]`) compares. A shell would write a file in both cases.
- What stands in quotes is a text, also `"$(rm a)"`. Behind a quote or a heredoc without an end nothing counts.
- Only the first `MAX_CHARS` characters are read, and of them `MAX_SIGNS` words, gaps and signs. A model or a client
  may write any number of them.
- A word such as `command` or `xargs -a FILE` in front hides what is run.

Words are found by one regular expression, which takes any text and linear time. `shlex` would not do. It raises on an
open quote, knows no heredoc, and forgets which signs were quoted. A word of the tables counts whatever its arguments
are. It does not know who runs the command, nor whether it succeeded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

MAX_CHARS = 4096
MAX_SIGNS = 512
_MAX_DEPTH = 3

WRITERS = frozenset({
    "apply_patch", "chmod", "chown", "cp", "dd", "ln", "mkdir", "mv", "patch", "rename", "rm", "rmdir", "rsync",
    "shred", "sponge", "touch", "truncate", "unlink",
    "ed", "emacs", "ex", "nano", "nvim", "vi", "vim",
})  # fmt: skip
"""Words at the beginning of a command that changes something. `tee` does only where it is given a file."""
_INSTALLS = frozenset({"add", "ci", "i", "install", "remove", "sync", "uninstall", "update", "upgrade"})
SUBCOMMANDS = {
    "git": frozenset({
        "add", "am", "apply", "checkout", "cherry-pick", "clean", "clone", "commit", "init", "merge", "mv", "pull",
        "rebase", "reset", "restore", "revert", "rm", "stash", "switch",
    }),
    **dict.fromkeys(
        ("apt", "apt-get", "brew", "bundle", "cargo", "conda", "gem", "npm", "pip", "pnpm", "poetry", "uv", "yarn"),
        _INSTALLS,
    ),
}  # fmt: skip
"""The first argument with which a command changes something."""
_READS = {"stash": ("list", "show")}
_ASKS = frozenset({"--check", "--dry-run", "--help", "--stat", "--version"})
_IN_PLACE = {
    **dict.fromkeys(("gsed", "sed"), re.compile(r"-[nErsuz]*i|--in-place")),
    **dict.fromkeys(("perl", "ruby"), re.compile(r"-[pnlaw0-9]*i")),
}
_SHELLS = frozenset({"bash", "dash", "ksh", "sh", "zsh"})
_SCRIPTED = frozenset({"bun", "deno", "node", "nodejs", "perl", "php", "pypy", "python", "ruby"})
_COMPARES = ("[", "test")
_LEADS = frozenset({
    "!", "do", "elif", "else", "if", "then", "until", "while", "{",
    "doas", "env", "exec", "nice", "nohup", "stdbuf", "sudo", "time", "timeout", "xargs",
})  # fmt: skip
"""Words behind which another command begins, with options in between."""
_HEADS = frozenset(
    {"eval", "find", "tee", *WRITERS, *SUBCOMMANDS, *_IN_PLACE, *_SHELLS, *_SCRIPTED, *_COMPARES, *_LEADS}
)
"""Words that decide. A command that begins with another one writes only where it redirects."""
_DIGITS = "0123456789."
"""What may follow the name of a program, as in `python3.11` and `pip3`."""
_VALUED = ("-C", "-I", "-c", "-u")
_IS_SKIPPED = re.compile(r"-|\w+=|[\d.]+[smhd]?\Z|\{\}\Z")
_ASSIGNS = re.compile(r"\w+\+?=")
_NOWHERE = ("/dev/fd/", "/dev/null", "/dev/std", "/dev/tty")
_DESCRIPTOR = re.compile(r"\d+-?\Z|-\Z")

_TOKEN = re.compile(
    r"""(?P<gap>(?:[ \t\r]|\\\n)++|\#[^\n]*+)
    |(?P<comparison>(?:\[\[\s[^\n]*?(?:\s\]\]|(?=\n)|\Z)|\(\([^\n]*?(?:\)\)|(?=\n)|\Z)))
    |(?P<heredoc>\d*+<<(?P<tabs>-?)[ \t]*+\\?['"]?(?P<end>[\w.+/-]++)['"]?)
    |(?P<out>(?:\d++|&)?+>[>|&]?+)
    |(?P<into>\d*+<[<>&]{0,2}+)
    |(?P<next>[\n;&|()`])
    |(?P<word>(?:[^\s;&|()<>`'"\\]++|\\.|\\\Z|'[^']*+(?:'|\Z)|"(?:[^"\\]++|\\.)*+(?:"|\\?\Z))++)
    |(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)
_QUOTES = re.compile(r"'([^']*+)(?:'|\Z)|\"((?:[^\"\\]++|\\.)*+)(?:\"|\\?\Z)|\\(.?)", re.DOTALL)
_SCRIPT_WRITES = re.compile(
    r"(?:\.open\(|\bopen\((?:[^()\n]|\((?:[^()\n]|\([^()\n]{0,80}\)){0,80}\)){0,200}?,)"
    r"\s{0,20}(?:mode\s{0,9}=\s{0,9})?['\"][rbt+]{0,3}[wax][bt+]{0,3}['\"]"
    r"|\.write_(?:text|bytes)\("
    r"|\bos\.(?:chmod|makedirs|mkdir|remove|rename|replace|rmdir|symlink|truncate|unlink)\("
    r"|\bshutil\.(?:copy\w{0,9}|move|rmtree)\("
    r"|\.(?:mkdir|rmdir|symlink_to|touch|unlink)\("
    r"|\b(?:append|write)File(?:Sync)?\("
)


@dataclass(slots=True)
class _SimpleCommand:
    """The words of one command, whether it redirects into a file, and the bodies of its heredocs."""

    words: list[str] = field(default_factory=list)
    redirects: bool = False
    bodies: tuple[str, ...] = ()


def writes(command: str) -> bool:
    """Whether a shell command changes something, as far as its beginning tells."""
    return _writes(command[:MAX_CHARS], 0)


def script_writes(code: str) -> bool:
    """Whether a script of Python or the like says that it writes a file, in its first `MAX_CHARS` characters."""
    return _SCRIPT_WRITES.search(code[:MAX_CHARS]) is not None


def _writes(text: str, depth: int) -> bool:
    return depth < _MAX_DEPTH and any(_changes(one, depth) for one in _simple_commands(text))


def _simple_commands(text: str) -> list[_SimpleCommand]:
    """The commands in a text, in order. A pipe, a semicolon, a parenthesis and the end of a line divide them."""
    found = [_SimpleCommand()]
    waiting: list[tuple[_SimpleCommand, re.Match[str]]] = []
    position, sign = 0, ""
    for _ in range(MAX_SIGNS):
        if (token := _TOKEN.match(text, position)) is None:
            break
        position, kind = token.end(), token.lastgroup
        if kind == "word":
            if not sign:
                found[-1].words.append(token[0])
            elif ">" in sign and _is_file(_unquoted(token[0]), sign):
                found[-1].redirects = True
            sign = ""
        elif kind == "out" and not (token[0][0] == ">" and text[max(token.start() - 1, 0)] in "-="):
            sign = token[0]
        elif kind == "into":
            sign = "<"
        elif kind == "heredoc":
            waiting.append((found[-1], token))
        elif kind == "next":
            if token[0] == "\n":
                for reader, begun in waiting:
                    body, position = _body(text, position, begun["end"], is_indented=bool(begun["tabs"]))
                    reader.bodies += (body,)
                waiting.clear()
            if found[-1].words or found[-1].redirects:
                found.append(_SimpleCommand())
            sign = ""
    return found


def _is_file(target: str, sign: str) -> bool:
    """Whether what stands behind a redirection is a file, and neither a descriptor nor a device without memory."""
    if sign.endswith(">&") and _DESCRIPTOR.match(target):
        return False
    return bool(target) and not target.startswith(_NOWHERE)


def _body(text: str, start: int, last: str, *, is_indented: bool) -> tuple[str, int]:
    """The body of a heredoc that begins at `start`, and where the text goes on. All of the rest where it has no end."""
    position = start
    while position < len(text):
        end = text.find("\n", position)
        line = text[position : len(text) if end < 0 else end].rstrip("\r")
        if (line.lstrip("\t") if is_indented else line) == last:
            return text[start:position], len(text) if end < 0 else end + 1
        if end < 0:
            break
        position = end + 1
    return text[start:], len(text)


def _unquoted(word: str) -> str:
    """A word as the command gets it."""
    return _QUOTES.sub(lambda quoted: quoted[1] or quoted[2] or quoted[3] or "", word) if _QUOTES.search(word) else word


def _changes(command: _SimpleCommand, depth: int) -> bool:
    first = command.words[0] if command.words else ""
    if first.isalpha() and first not in _HEADS:
        return command.redirects
    words = _led([_unquoted(word) for word in command.words])
    name = words[0].rpartition("/")[2].rstrip(_DIGITS) if words else ""
    if command.redirects and name not in _COMPARES:
        return True
    if name not in _HEADS or not _ASKS.isdisjoint(words):
        return False
    arguments = words[1:]
    if name in WRITERS:
        return True
    if name == "tee":
        return any(_is_file(one, ">") for one in arguments if not one.startswith("-"))
    if name in _IN_PLACE and any(map(_IN_PLACE[name].match, arguments)):
        return True
    if name in SUBCOMMANDS:
        return _subcommand_changes(name, arguments)
    if name == "find":
        return "-delete" in arguments or _inner_changes(_behind(arguments, ("-exec", "-execdir", "-ok")), depth)
    if name in _SHELLS:
        return any(_writes(one, depth + 1) for one in (*_given(arguments, "c"), *command.bodies))
    if name == "eval":
        return _writes(" ".join(arguments), depth + 1)
    if name in _SCRIPTED:
        scripts = (*_given(arguments, "c"), *_given(arguments, "e"), *command.bodies)
        return any(map(script_writes, scripts)) or _inner_changes(_behind(arguments, ("-m",)), depth)
    return False


def _led(words: Sequence[str]) -> Sequence[str]:
    """The words from that on which says what is done: behind assignments, keywords and the like of `sudo`."""
    start = 0
    while start < len(words):
        if words[start].rpartition("/")[2] in _LEADS:
            start += 1
            while start < len(words) and _IS_SKIPPED.match(words[start]):
                start += 1 + (words[start] in _VALUED)
        elif _ASSIGNS.match(words[start]):
            start += 1
        else:
            break
    return words[start:]


def _subcommand_changes(name: str, arguments: Sequence[str]) -> bool:
    """Whether the first argument that is no option is one of the command's that change something."""
    start = 0
    while start < len(arguments) and arguments[start].startswith("-"):
        start += 1 + (arguments[start] in _VALUED)
    if name == "uv" and arguments[start : start + 1] == ["pip"]:
        start += 1
    done, behind = arguments[start : start + 1], arguments[start + 1 : start + 2]
    return bool(done) and done[0] in SUBCOMMANDS[name] and not (behind and behind[0] in _READS.get(done[0], ()))


def _inner_changes(words: Sequence[str], depth: int) -> bool:
    """Whether a command that another one runs changes something."""
    return bool(words) and depth + 1 < _MAX_DEPTH and _changes(_SimpleCommand([*map(_quoted, words)]), depth + 1)


def _quoted(word: str) -> str:
    """A word that `_unquoted` gives back."""
    return "'" + word.replace("'", "'\\''") + "'"


def _behind(arguments: Sequence[str], options: Iterable[str]) -> Sequence[str]:
    """What stands behind the first of these options."""
    places = [arguments.index(option) for option in options if option in arguments]
    return arguments[min(places) + 1 :] if places else ()


def _given(arguments: Sequence[str], letter: str) -> Sequence[str]:
    """The script behind an option such as `-c` or `-lc`, where it stands in front of everything but options.

    `-o` has a value, as in `bash -euo pipefail -c`.
    """
    number = 0
    while number < len(arguments) and arguments[number].startswith("-"):
        if re.fullmatch(rf"-[a-z]*{letter}", arguments[number]):
            return arguments[number + 1 : number + 2]
        number += 1 + (re.fullmatch(r"-[a-z]*o", arguments[number]) is not None)
    return ()
