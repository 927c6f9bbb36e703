"""Whether a shell command changes something, read off its text: a table of commands, and what hostile text may cost."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acmserve.context.transcript.commands.shell_writes import MAX_CHARS, MAX_SIGNS, script_writes, writes

WRITING = (
    # Redirections into a file.
    "echo a > f",
    "echo a >> f",
    "echo a >f",
    "echo a>f",
    "echo a >| f",
    "make &> build.log",
    "make >& build.log",
    "make 2> errors.txt",
    "make > build.log 2>&1",
    "ls > '/tmp/a b'",
    "> f",
    "2>/dev/null echo a > f",
    "diff a b > c.patch || true",
    # Heredocs.
    "cat > f <<EOF\nx\nEOF",
    "cat <<'EOF' > f\nx\nEOF",
    "cat <<-EOF >> f\n\tx\n\tEOF\nls",
    "cat <<A <<B\na > b\nA\nb\nB\nmv a b",
    "patch -p1 <<'EOF'\n--- a\n+++ b\nEOF",
    "python - <<EOF\nfrom pathlib import Path\nPath('a').write_text('b')\nEOF",
    "python3 <<'EOF'\nwith open('a.py', 'w') as f:\n    f.write(x)\nEOF",
    "bash <<EOF\nmv a b\nEOF",
    # Edits in place.
    "sed -i s/a/b/ f",
    "sed -i.bak 's/a/b/' f",
    "sed -Ei 's/a/b/' f",
    "sed -n -i -e 1p f",
    "sed --in-place=.bak s/a/b/ f",
    "perl -pi -e 's/a/b/' f",
    "perl -i.bak -pe 1 f",
    # Command words.
    "mv a b",
    "cp -r a b",
    "rm -rf build",
    "mkdir -p a/b",
    "touch a",
    "chmod +x run.sh",
    "ln -s a b",
    "patch -p1 -i x.diff",
    "truncate -s 0 log",
    "dd if=/dev/zero of=f",
    "vim f",
    "apply_patch '*** Begin Patch'",
    "echo a | tee f",
    "echo a | sudo tee -a /etc/hosts",
    # Anywhere in a line.
    "cd /repo && rm a",
    "cd /repo; rm a",
    "ls\nrm a",
    "ls &\nrm a",
    "(cd a; rm b)",
    "if true; then rm a; fi",
    "for f in *; do mv $f x; done",
    "echo $(rm a)",
    "echo `rm a`",
    "A=1 B='2 3' rm a",
    "/bin/rm a",
    "\\rm a",
    "sudo -E rm a",
    "timeout 10 rm a",
    "env A=1 rm a",
    "git ls-files | xargs rm",
    "git ls-files | xargs -n1 -I{} mv {} x",
    "find . -name '*.pyc' -delete",
    "find . -name '*.pyc' -exec rm {} +",
    "timeout 0.5 rm a",
    "bash -c 'rm a'",
    "bash -euo pipefail -c 'rm a'",
    'bash -lc "cd a && sed -i s/a/b/ f"',
    "python -c \"open('a', 'w').write('b')\"",
    "sed -n 1p f \\\n  > g",
    "# what it does\nrm a",
    # Subcommands.
    "git apply x.diff",
    "git -C repo commit -m 'a'",
    "git checkout -- f",
    "git restore f",
    "git reset --hard",
    "git mv a b",
    "git rm a",
    "git merge x",
    "git rebase main",
    "git stash",
    "git add -A",
    "pip install -e .",
    "pip install numpy 2>&1 | tail -3",
    "python -m pip install x",
    "npm install",
    "uv pip install x",
    "apt-get -y install x",
)  # fmt: skip

READING = (
    "",
    "   \n\t",
    "ls -la",
    "cat f",
    "pytest",
    "python script.py",
    "python -m pytest -x",
    "make",
    "cd /repo && make test",
    # Where the output goes nowhere, or to another descriptor.
    "make 2>&1",
    "make >&2",
    "make 2>&1 | tail -3",
    "make > /dev/null",
    "make >/dev/null 2>&1",
    "make &>/dev/null",
    'make > "/dev/null"',
    "make 2>/dev/null | head",
    "make 2>&-",
    "echo a >/dev/stderr",
    "ls | tee",
    "ls | tee /dev/stderr",
    # A sign in quotes, behind a backslash, or in a comment.
    "grep '>' f",
    'grep ">" f',
    "grep '->' f",
    "grep \\> f",
    'echo "a > b"',
    "awk '$1 > 3' f",
    "awk '{ if ($1 > 3) print }' f | sort",
    "ls # > f",
    "# rm a",
    "echo 'it'\"'\"'s > a'",
    # Comparisons.
    "[[ a > b ]]",
    "if [[ a > b && c > d ]]; then ls; fi",
    "[ a > b ]",
    "test a > b",
    "(( a > b ))",
    "echo $((a > b))",
    # Arrows. A shell takes them for redirections, and nobody means it.
    "grep -> x",
    "echo a -> b",
    "echo a => b",
    # A word that stands for something else.
    "grep rm f",
    "echo mv a b",
    "man cp",
    "which rm",
    "git grep 'git add'",
    "sed -n '/-i/p' f",
    "sed 's/a/b/' f",
    "perl -ne 'print' f",
    "perl -MList::Util -e 1",
    "cat rm",
    "ls mkdir touch",
    # Only asked, not done.
    "rm --help",
    "mkdir --version",
    "git apply --check x.diff",
    "patch --dry-run -p1 x",
    "pip install --help",
    # Subcommands that read.
    "git",
    "git -C repo log",
    "git diff HEAD~1",
    "git status && git log --oneline",
    "git stash list",
    "git stash show -p",
    "pip list",
    "npm test",
    # Heredocs and scripts that write nothing that we know.
    "cat <<EOF\na > b\nrm c\nEOF",
    "cat <<'EOF'\nit's > a\nEOF\nls",
    "cat <<EOF\nno end > a",
    "cat <<< 'a > b'",
    "wc -l < f",
    "python - <<EOF\nif a > b:\n    print(open('f').read())\nEOF",
    "python -c 'print(1 > 2)'",
    "bash -c 'ls > /dev/null'",
    "bash script.sh",
    "find . -name '*.py' -exec grep a {} +",
    "git ls-files | xargs grep rm",
    # No shell can read it, so nothing behind the open quote counts.
    "echo 'a > b",
    'echo "a > b',
    "echo a >",
    ">",
    "<<",
    "cat <<",
    "\\",
)  # fmt: skip


@pytest.mark.parametrize("command", WRITING)
def test_it_writes(command: str) -> None:
    assert writes(command)


@pytest.mark.parametrize("command", READING)
def test_it_does_not_write(command: str) -> None:
    assert not writes(command)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("open('a', 'w')", True),
        ('open(f"{a}/b", mode="ab")', True),
        ("open(os.path.join(a, 'b'), 'w', encoding='utf-8')", True),
        ("path.open('x')", True),
        ("Path(a).write_bytes(b)", True),
        ("shutil.rmtree(a)", True),
        ("os.remove(a)", True),
        ("fs.writeFileSync(a, b)", True),
        ("open('w')", False),
        ("open('was.txt')", False),
        ("open('a', 'r')", False),
        ("open('a', 'rb').read()", False),
        ("print(a > b)", False),
        ("sys.stdout.write('a')", False),
        ("a.remove(b)", False),
    ],
)
def test_a_script_writes_where_it_says_so(code: str, expected: bool) -> None:
    assert script_writes(code) is expected


@pytest.mark.parametrize("build", ["echo {} > f", "cat <<EOF\n{}\nEOF\nrm a"])
def test_only_the_beginning_of_a_long_command_is_read(build: str) -> None:
    assert writes(build.format("a " * 10))
    assert not writes(build.format("a " * MAX_CHARS))
    assert writes("rm a; echo " + "a " * MAX_CHARS)


_PIECES = ("'", '"', "\\", "$(", ")", "(", "((", "))", "[[ ", " ]]", "`", "<<EOF", "<<", "<", ">", ">>", "&", "|", ";")
_PIECES += ("\n", " ", "\t", "EOF", "#", "a", "2", "-i", "sed", "bash", "-c", "python", "find", "-exec", "xargs", "rm")
_PIECES += ("git", "-", "=", "{", "}", "\x00", "\ud800", "é", "open(", ",", "'w'", "\r", "-C", "timeout", "/dev/null")


@given(st.lists(st.sampled_from(_PIECES), max_size=60).map("".join) | st.text(max_size=200))
@settings(max_examples=600, deadline=None)
def test_no_text_is_an_error(text: str) -> None:
    assert writes(text) in (True, False)
    assert script_writes(text) in (True, False)


def num_steps(text: str) -> int:
    """How many lines of Python a judgement runs. Lines inside of regular expressions are not among them."""
    ran = 0

    def count(*_: object) -> object:
        nonlocal ran
        ran += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        writes(text)
    finally:
        sys.settrace(before)
    return ran


@given(st.lists(st.sampled_from(_PIECES), min_size=1, max_size=6).map("".join))
@settings(max_examples=120, deadline=None)
def test_a_text_twice_as_long_takes_about_twice_the_steps(piece: str) -> None:
    """Heredocs, quotes and commands in commands repeated: none of them makes a judgement quadratic."""
    number = MAX_CHARS // 4 // len(piece)
    once, twice = num_steps(piece * number), num_steps(piece * 2 * number)
    assert twice <= 3 * once + 500


@pytest.mark.parametrize("text", ["bash -c '" * 3, "find -exec ", "sudo ", "xargs ", "bash -c \"bash -c 'a", "a;"])
def test_commands_in_commands_end_somewhere(text: str) -> None:
    assert num_steps(text * (MAX_CHARS // len(text))) < 60 * MAX_CHARS


def test_of_many_short_words_the_first_are_read() -> None:
    assert writes("a;" * (MAX_SIGNS // 2 - 2) + "rm a")
    assert not writes("a;" * (MAX_SIGNS // 2) + "rm a")
