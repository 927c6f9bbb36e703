"""One text of an answer that several steps of the model write: their parts, joined by blank lines.

    step 0  "Let me look.\\n"  (context calls)   \\
    step 1  "\\n"              (context calls)    >   "Let me look.\\n\\nIt is Paris."
    step 2  "It is Paris."    (answer)          /

The same object serves a stream and a whole answer, so both say the same, to the byte. White space waits until something
readable follows it in the same step. A step that only calls tools often says a line break first, which nobody is to
see. An answer of a single step is passed on unchanged. It does not know what a step is made of.
"""

from __future__ import annotations

SEPARATOR = "\n\n"


class JoinedText:
    """`add` and `end_step` return what may be shown now. Put together it is `text`."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._held = ""
        self._speaking = False

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return "".join(self._shown)

    def add(self, text: str) -> str:
        """Take in the next part of the running step."""
        text = self._held + text
        readable = text.rstrip()
        self._held = text[len(readable) :]
        if not readable:
            return ""
        if self._shown and not self._speaking:
            readable = SEPARATOR + readable.lstrip()
        self._speaking = True
        return self._show(readable)

    def end_step(self, *, last: bool) -> str:
        """End the running step. White space at the very end belongs to the answer."""
        shown = self._show(self._held) if last and (self._speaking or not self._shown) else ""
        self._held, self._speaking = "", False
        return shown

    def _show(self, text: str) -> str:
        if text:
            self._shown.append(text)
        return text
