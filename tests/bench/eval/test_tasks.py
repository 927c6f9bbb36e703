"""The tasks: published parameters, samples whose right answer follows from their text, and the users' files."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from acmserve.bench.eval.tasks import mrcr, needlebench, oolong, pi_llm
from acmserve.bench.eval.tasks.haystack import hide
from acmserve.bench.eval.tasks.pi_llm import TRACKED_KEYS
from acmserve.bench.eval.tasks.registry import DEFAULT_TASKS, TASKS, check_parameters, make_samples
from acmserve.bench.eval.tasks.task import CHARS_PER_TOKEN, EvalSample, EvalTask
from acmserve.errors import AcmError, InvalidRequest
from tests.support.docs.pages import read_page

RIGHT = {
    "pi-llm": lambda s: "".join(f"The current value of {k} is {v}.\n" for k, v in s.facts["values"].items()),
    "needlebench": lambda s: f"\\boxed{{{s.gold}}}",
    "oolong": lambda s: f"Answer: {s.gold.strip('[]').strip(chr(39))}",
    "gsm-infinite": lambda s: f"Answer: {s.gold}.",
    "longbench-v2": lambda s: f"The correct answer is ({s.gold})",
}
"""How a right answer is written, by task. Elsewhere as it stands in `gold`."""


def right(sample: EvalSample) -> str:
    return RIGHT.get(sample.task, lambda s: s.gold)(sample)


@pytest.mark.parametrize("task", [TASKS[name] for name in DEFAULT_TASKS], ids=lambda task: task.name)
def test_a_right_answer_scores_one_and_another_samples_answer_less(task: EvalTask) -> None:
    samples = make_samples(task, 3, 7, task.parameters)
    assert samples == make_samples(task, 3, 7, task.parameters)
    assert len({sample.name for sample in samples}) == len(samples)
    for sample in samples:
        assert task.score(sample, right(sample)) == pytest.approx(1.0, abs=1e-6), sample.name
        assert task.score(sample, "") == 0
    others = [task.score(one, right(two)) for one, two in pairwise(samples) if right(one) != right(two)]
    assert others
    assert max(others) < 1


def test_the_parameters_are_the_papers() -> None:
    """Those of PI-LLM and NeedleBench are told in `test_published`."""
    assert TASKS["mrcr"].published["needles"] == TASKS["mrcr-v2"].published["needles"] == (2, 4, 8)
    assert TASKS["oolong"].published["tokens"] == (8_192, 16_384, 32_768, 65_536, 131_072)
    assert TASKS["babilong"].published["tokens"] == (0, *(1_000 * 2**power for power in range(8)))


def test_large_sizes_that_are_our_own_are_told_as_such() -> None:
    """No paper is named for these grids."""
    assert TASKS["gsm-infinite"].published["tokens"] == (0, 8_000, 16_000, 32_000)
    told = "Of FRAMES, LongBench v2 and GSM-Infinite these are sizes of our own."
    assert told in read_page("docs/guides/evaluation.md")


@pytest.mark.parametrize("name", [name for name in DEFAULT_TASKS if "tokens" in TASKS[name].published])
def test_a_text_is_as_long_as_it_is_asked_for(name: str) -> None:
    """In characters for each token. Those of MRCR lie in the bin of its data set that ends with such a length."""
    task = TASKS[name]
    grid = {**{parameter: values[:1] for parameter, values in task.published.items()}, "tokens": (8_192,)}
    lengths = [sample.num_chars / CHARS_PER_TOKEN for sample in make_samples(task, 2, 1, grid)]
    least = 4_096 if name.startswith("mrcr") else 0.95 * 8_192
    assert least < min(lengths) <= max(lengths) < 1.05 * 8_192


@pytest.mark.parametrize("num_updates", [2, 16, 512])
def test_pi_llm_updates_each_key_as_often_and_never_twice_in_a_row(num_updates: int) -> None:
    (sample,) = pi_llm.make({"keys": 46, "updates": num_updates}, 3)
    stream = re.findall(r"([^;:\n]+): ([^;]+); ?", sample.context.rpartition("\n")[2])
    stream = [(key.strip(), value) for key, value in stream]
    assert len(stream) == 46 * num_updates
    counts = {key: sum(other == key for other, _ in stream) for key in TRACKED_KEYS}
    assert set(counts.values()) == {num_updates}
    assert all(one != two for (one, _), (two, _) in pairwise(stream))
    assert dict(stream) == sample.facts["values"]
    if num_updates <= pi_llm.NUM_VALUES:
        assert len(set(stream)) == len(stream)


def test_pi_llm_takes_the_users_dictionary() -> None:
    dictionary = {"bird": ["rook", "swift", "wren"], "bug": ["ant", "bee", "fly"]}
    (sample,) = pi_llm.make({"keys": 46, "updates": 3}, 0, dictionary)
    assert {key: value in dictionary[key] for key, value in sample.facts["values"].items()} == {
        "bird": True,
        "bug": True,
    }
    with pytest.raises(InvalidRequest, match="list of values"):
        pi_llm.make({"keys": 46, "updates": 3}, 0, ["bird"])


def test_needles_stand_at_their_depth() -> None:
    words = [str(number) for number in range(1000)]
    hidden = hide(" ".join(words), ["ONE.", "TWO.", "END."], 40, 40).split()
    places = [hidden.index(needle) for needle in ("ONE.", "TWO.", "END.")]
    assert places == [400, 801, 1002]
    (sample,) = needlebench.make({"needles": 5, "tokens": 2000, "depth": 40}, 1)
    assert all(f"\n{needle}\n" in sample.context for needle in sample.facts["needles"])
    assert len(sample.facts["needles"]) == 5
    first = min(sample.context.index(needle) for needle in sample.facts["needles"])
    assert 0.3 < first / len(sample.context) < 0.5
    assert 0.9 < len(sample.context) / 8000 < 1.1


def test_needlebench_takes_the_users_names_sentences_and_hay() -> None:
    point = {"needles": 2, "tokens": 50, "depth": 0}
    material = {"names": "Ada,Bo, Cy", "sentences": ["{A} is {B}'s {relationship}!", "{B} is a child of {A}."]}
    for seed in range(8):
        (sample,) = needlebench.make(point, seed, material | {"hay": "hay " * 9})
        forms = "|".join(needlebench.RELATIONS)
        told = [
            re.fullmatch(rf"(\w+) is (\w+)'s (?:{forms})!|(\w+) is a child of (\w+)\.", one)
            for one in sample.facts["needles"]
        ]
        pairs = [(one[1], one[2]) if one and one[1] else (one and one[4], one and one[3]) for one in told]
        elders, youngers = ({str(pair[at]) for pair in pairs} for at in (0, 1))
        assert elders | youngers == {"Ada", "Bo", "Cy"}
        assert {sample.gold} == elders - youngers
        assert "hay hay" in sample.context


@pytest.mark.parametrize(
    ("material", "told"),
    [
        (["Ada"], "no JSON object with"),
        ({"people": ["Ada"]}, "no JSON object with"),
        ({"names": ["Ada", 7]}, "names is .*, and no list of texts"),
        ({"names": ["Ada", "Bo"]}, "has 2 names. Give at least 3"),
        ({"sentences": "{A} is the {relationship} of {B}"}, "sentences is .*, and no list of texts"),
        ({"sentences": []}, "no list of texts"),
        ({"sentences": ["{A} is the {relationship}"]}, "cannot be filled. Use {A}, {B} and {relationship}"),
        ({"sentences": ["{A} is the {relation} of {B}"]}, "cannot be filled"),
        ({"sentences": ["{A.x} is the {relationship} of {A} and {B}"]}, "cannot be filled"),
        ({"sentences": ["{A} is the { of {B}"]}, "cannot be filled"),
        ({"hay": ["straw"]}, "hay is .*, and no text"),
    ],
)
def test_another_shape_of_needlebenchs_file_is_named(material: object, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        needlebench.make({"needles": 2, "tokens": 50, "depth": 0}, 0, material)


@pytest.mark.parametrize("gold", ["three", "[]", "[3", "7", "'abc'", "['a', 'b']", "[datetime.date(2024)]"])
def test_an_answer_that_oolong_could_not_score_is_named_before_anything_is_asked(gold: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no list with one entry"):
        make_samples(TASKS["oolong"], 1, 0, {}, _written(tmp_path, {**ROWS["oolong"], "answer": gold}))


def test_mrcr_asks_for_one_of_several_answers() -> None:
    (sample,) = mrcr.make("mrcr", {"needles": 4, "tokens": 2000}, 5)
    prefix = sample.facts["prefix"]
    assert len(prefix) == 10  # as `random_string_to_prepend` of openai/mrcr
    asked = re.findall(r"the \w+ ([\w ]+ about the \w+) once", sample.question)[0]
    answers = [two["content"] for one, two in pairwise(sample.history) if one["content"] == f"Write a {asked}."]
    assert len(set(answers)) == 4
    assert sample.gold.removeprefix(prefix) in answers
    (second,) = mrcr.make("mrcr-v2", {"needles": 2, "tokens": 1000}, 5)
    assert second.gold[12:] in second.context


def test_oolong_asks_four_questions_about_one_context() -> None:
    samples = oolong.make({"tokens": 1000}, 2)
    assert len(samples) == 4
    assert len({sample.context for sample in samples}) == len({sample.group for sample in samples}) == 1
    lines = [line for line in samples[0].context.splitlines() if line.startswith("Date: ")]
    assert all(re.fullmatch(r"Date: \w{3} \d\d, \d{4} \|\| User: \d+ \|\| Instance: .+", line) for line in lines)
    label = re.findall(r"the label (\w+)\?", samples[0].question)[0]
    counted = sum(any(word in line for word in oolong._LABELS[label]) for line in lines)
    assert samples[0].gold == f"[{counted}]"


def test_oolong_asks_more_about_the_same_context_and_each_four_have_one_of_each_type() -> None:
    for seed in range(8):
        four, many = (oolong.make({"tokens": 300, "questions": num}, seed) for num in (4, 16))
        assert four == oolong.make({"tokens": 300}, seed)
        assert [one.question for one in many[:4]] == [one.question for one in four]
        assert {one.context for one in many} == {four[0].context}
        assert len({one.question for one in many}) == len({one.name for one in many}) == 16
        kinds = [one.facts["answer_type"] for one in many]
        assert all(len({*kinds[start : start + 4]}) == 4 for start in range(0, 16, 4))
        assert all(TASKS["oolong"].score(one, right(one)) == 1 for one in many)
        lines = [line for line in four[0].context.splitlines() if line.startswith("Date: ")]
        for one in many:
            if found := re.findall(r"How many instances does the user (\d+) have", one.question):
                assert one.gold == f"[{sum(f'User: {found[0]} ' in line for line in lines)}]"
            if found := re.findall(r"most common of the user (\d+)\?", one.question):
                own = [line for line in lines if f"User: {found[0]} " in line]
                counts = {
                    label: sum(any(word in line for word in words) for line in own)
                    for label, words in oolong._LABELS.items()
                }
                assert one.gold == f"['{max(counts, key=lambda label: counts[label])}']"
    with pytest.raises(InvalidRequest, match="Give 1 to 16"):
        oolong.make({"tokens": 300, "questions": 17}, 0)


ROWS = {
    "mrcr": {
        "prompt": json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])[:-1]
        + ', {"role": "user", "content": "again"}]',
        "answer": "Xb",
        "random_string_to_prepend": "X",
    },
    "mrcr-v2": {"queries": "User: a ... Prepend AbCd1234EfGh", "answer": "AbCd1234EfGhb"},
    "oolong": {
        "id": 7, "context_window_text": "lines", "question": "how many?", "answer": "[3]", "context_window_id": 1,
        "answer_type": "ANSWER_TYPE.NUMERIC", "dataset": "trec_coarse", "context_len": 1024,
    },
    "babilong": {"input": "text", "question": "Where is Mina?", "target": "garden", "task": "qa1"},
    "gsm-infinite": {"problem": "sums", "question": "how many?", "solution": "so: Answer: 12.", "op": 3},
    "frames": {"Prompt": "where?", "Answer": "Birch", "articles": ["one", "two"]},
    "longbench-v2": {"context": "text", "question": "what?", "answer": "C"} | {f"choice_{c}": c for c in "ABCD"},
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_the_users_file_are_read(name: str, tmp_path: Path) -> None:
    task = TASKS[name]
    path = tmp_path / "rows.jsonl"
    path.write_text(f"{json.dumps(ROWS[name])}\n\n{json.dumps(ROWS[name])}\n")
    samples = make_samples(task, 5, 0, task.parameters, path)
    assert [sample.name for sample in samples] == ["rows/0", "rows/1"]
    assert task.score(samples[0], right(samples[0])) == 1
    for key in ROWS[name].keys() - {"id", "context_window_id", "dataset", "context_len", "op", "task"}:
        path.write_text(json.dumps({k: v for k, v in ROWS[name].items() if k != key}))
        with pytest.raises(InvalidRequest, match=f"no '{key}'"):
            make_samples(task, 5, 0, task.parameters, path)


TRANSCRIPT = {
    "id": "3952f2d5", "context_window_id": "e4fb", "context_window_text": "[START OF EPISODE] ...",
    "question": "Total number of rolls in this episode?", "answer": "84", "question_type": "singledoc_rolls",
    "episodes": [1], "campaign": "campaign2",
}  # fmt: skip


def test_oolong_reads_rows_of_its_transcripts_and_scores_them_by_their_own_rule(tmp_path: Path) -> None:
    task = TASKS["oolong"]
    (tmp_path / "rows.jsonl").write_text(f"{json.dumps(TRANSCRIPT)}\n{json.dumps(ROWS['oolong'])}\n")
    transcript, lines = make_samples(task, 5, 0, task.parameters, tmp_path / "rows.jsonl")
    assert (transcript.setting, transcript.group) == ("singledoc_rolls-1", "e4fb")
    assert [task.score(transcript, said) for said in ("\\boxed{84}", "\\boxed{85}", "Answer: 84")] == [1, 0.75, 0]
    assert [task.score(lines, said) for said in ("\\boxed{3}", "Answer: 3")] == [0, 1]
    for changed, words in ((("episodes", "[1]"), "no list"), (("answer", 84), "no text")):
        with pytest.raises(InvalidRequest, match=words):
            make_samples(task, 1, 0, {}, _written(tmp_path, {**TRANSCRIPT, changed[0]: changed[1]}))


def test_files_and_parameters_that_are_wrong_are_named(tmp_path: Path) -> None:
    task = TASKS["oolong"]
    with pytest.raises(AcmError, match="cannot be read"):
        make_samples(task, 1, 0, task.parameters, tmp_path / "none.json")
    (tmp_path / "empty.json").write_text("{}")
    with pytest.raises(InvalidRequest, match="holds no rows"):
        make_samples(task, 1, 0, task.parameters, tmp_path / "empty.json")
    with pytest.raises(InvalidRequest, match="names no task"):
        make_samples(TASKS["babilong"], 1, 0, {}, _written(tmp_path, {**ROWS["babilong"], "task": ""}))
    with pytest.raises(InvalidRequest, match="oolong has no 'updates'"):
        check_parameters(task, {"updates": (2,)})
    table = tmp_path / "rows.csv"
    table.write_text('queries,answer\n"User: a, b",AbCd1234EfGhb\n')
    assert make_samples(TASKS["mrcr-v2"], 1, 0, {}, table)[0].question == "User: a, b"


@pytest.mark.parametrize(
    ("name", "changed", "told"),
    [
        ("mrcr", {"prompt": '["hello", {"role": "user", "content": "again"}]'}, "no JSON list of messages"),
        ("mrcr", {"prompt": '[{"role": "user"}]'}, "no JSON list of messages"),
        ("mrcr", {"prompt": '[{"role": "user", "content": [1]}]'}, "no JSON list of messages"),
        ("mrcr", {"prompt": "[]"}, "no JSON list of messages"),
        ("mrcr-v2", {"answer": "short"}, "no string of 12 characters in front"),
        ("longbench-v2", {"answer": "E"}, "is none of A, B, C, D"),
        ("frames", {"Answer": "The"}, "has no word that could be found"),
        ("babilong", {"task": "qa6"}, "qa6 is not supported.*Give qa1 to qa5"),
        ("babilong", {"task": "qa15"}, "qa15 is not supported"),
    ],
)
def test_a_row_that_no_answer_could_score_on_is_refused(
    name: str, changed: dict[str, str], told: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=told):
        make_samples(TASKS[name], 1, 0, {}, _written(tmp_path, {**ROWS[name], **changed}))


@pytest.mark.parametrize(
    ("name", "grid", "told"),
    [
        ("pi-llm", {"keys": (46,), "updates": (0,)}, "pi-llm.updates is 0. Give 1 or more"),
        ("pi-llm", {"keys": (0,), "updates": (2,)}, "pi-llm.keys is 0"),
        ("mrcr", {"needles": (0,), "tokens": (100,)}, "mrcr.needles is 0. Give 1 to 8"),
        ("mrcr-v2", {"needles": (9,), "tokens": (100,)}, "mrcr-v2.needles is 9"),
        ("frames", {"articles": (60,), "tokens": (100,)}, "frames.articles is 60"),
    ],
)
def test_a_parameter_of_which_no_sample_can_be_made_is_named(
    name: str, grid: dict[str, tuple[int, ...]], told: str
) -> None:
    with pytest.raises(InvalidRequest, match=told):
        make_samples(TASKS[name], 1, 0, grid)


def test_a_dictionary_without_keys_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no JSON object with a list of values"):
        pi_llm.check_dictionary({})


def _written(folder: Path, row: object) -> Path:
    path = folder / "rows.json"
    path.write_text(json.dumps([row]))
    return path
