"""The loop of a recursive language model (arXiv 2512.24601), as the PEEK paper runs it: 30 iterations, depth 1.

    question --> answer with a block of code --> run --> its output, as a message of the user --> answer ...
                 answer with FINAL(...)      --> the answer            FINAL_VAR(name) --> what the variable holds

The long context stands in the Python session alone. The prompt has the question, and how long the context is. An
answer without code and without FINAL is told so. Code that is cut is neither run nor read. After the last iteration the
answer is asked for outright. The words are our own. A conversation may go on with a further question, as in the PEEK
paper's Shared Chat (appendix E.6). It knows neither servers nor maps: `ask` gets the messages, and whether no other
request follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

from acmserve.bench.eval.rlm.python_session import PythonSession
from acmserve.context.transcript.message import Message

NUM_ITERATIONS = 30
SYSTEM = """\
You answer a question about a long text. The text is not in this conversation: it is the variable `context` of a \
Python session, which keeps its variables. Look at it with code, in blocks like this one:
```repl
print(len(context), context[:500])
```
You see what the code prints, cut where it is long. In the session there are also:
- llm_query(prompt): asks a language model, which sees nothing but the prompt. Give it pieces of the text.
- llm_query_batched(prompts): the same for a list of prompts. It returns the list of answers.
- SHOW_VARS(): the names of your variables.
Find out first what the text is and how it is laid out, then work out the answer with code.
When you know the answer, write it outside of any code, at the beginning of a line: FINAL(the answer). \
FINAL_VAR(name) gives the text of a variable of the session instead."""
ASKED = "The variable `context` has {num_chars:,} characters. The question:\n{question}"
ASKED_NEXT = (
    "Your answer was taken down. The next question is about the same text. The session still has `context`, and the "
    "variables that you made. The question:\n{question}"
)
OUTPUT = "REPL output:"
"""How everything begins that the model is told in the name of the user, but for the questions."""
PRINTED = OUTPUT + "\n{output}"
NOTHING = OUTPUT + "\nNothing was run: your answer has neither a ```repl block nor FINAL(...)."
NO_NAME = OUTPUT + "\nThere is no variable {name}. Make it in a block of code first."
LAST = "\n\nThis was the last step. Give your answer now: FINAL(the answer)"
_BLOCK = re.compile(r"```(\w*)[ \t]*\n(.*?)```", re.DOTALL)
_CODE = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_FINAL_VAR = re.compile(r"^\s*FINAL_VAR\((.*?)\)", re.DOTALL | re.MULTILINE)
_FINAL = re.compile(r"^\s*FINAL\((.*)\)\s*$", re.DOTALL | re.MULTILINE)
"""As the published loop reads them: the first bracket ends a name, and the last one that ends a line an answer."""
Ask = Callable[[list[Message], bool], str]


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """What stands in the brackets. `is_name`: a variable holds the answer."""

    text: str
    is_name: bool


def code_blocks(answer: str, languages: Collection[str] = ("repl", "python")) -> list[str]:
    """The code that an answer wants to be run."""
    return [code for language, code in _BLOCK.findall(answer) if language in languages]


def final_answer(answer: str) -> FinalAnswer | None:
    """The final answer, outside of code. None where there is none."""
    text = _CODE.sub("", answer)
    if found := _FINAL_VAR.search(text):
        return FinalAnswer(found[1].strip().strip("\"'"), True)
    found = _FINAL.search(text)
    return None if found is None else FinalAnswer(found[1].strip(), False)


def answer_in_session(
    ask: Ask,
    question: str,
    num_chars: int,
    session: PythonSession,
    num_steps: int = NUM_ITERATIONS,
    messages: list[Message] | None = None,
) -> str:
    """The answer to one question. What the model said last, where it never says FINAL.

    `messages` are a conversation that goes on. What is said about this question is added to them.
    """
    messages = [] if messages is None else messages
    if messages:
        messages.append({"role": "user", "content": ASKED_NEXT.format(question=question)})
    else:
        asked = ASKED.format(num_chars=num_chars, question=question)
        messages += [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
    for number in range(1, num_steps + 1):
        said = ask(messages, False)
        messages.append({"role": "assistant", "content": said})
        observation, answer = _step(said, session)
        if answer is not None:
            return answer
        last = LAST if number == num_steps else ""
        messages.append({"role": "user", "content": observation + last})
    said = ask(messages, True)
    messages.append({"role": "assistant", "content": said})
    return _step(said, session)[1] or said


def _step(said: str, session: PythonSession) -> tuple[str, str | None]:
    """Run what an answer wants to be run: what the model is told of it, and the final answer if it gave one."""
    outputs = [session.run(code) for code in code_blocks(said)]
    observation = PRINTED.format(output=session.limits.joined(outputs)) if outputs else NOTHING
    final = final_answer(said)
    if final is None:
        return observation, None
    if not final.is_name:
        return observation, final.text
    value = session.value(final.text)
    return (NO_NAME.format(name=session.limits.trim(final.text)), None) if value is None else (observation, value)
