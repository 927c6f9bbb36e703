"""Parameters of the generators against what the papers' repositories publish, copied here a second time.

Sources, each with its commit:

    PI-LLM        zhuangziGiantfish/Unable-to-Forget, 3534274880727d2bad5cbd2b850923ee5a683a1c:
                  testing_data/dict_category_double-word_46-400_v1-1.json, configs/test1_updates.yaml
    NeedleBench   open-compass/opencompass: needlebench_v2/atc.py of the data sets
                  (0be1422a02c4cd2dc02dcf7833ccd862023b5c5c), and of their configurations
                  needlebench_v2_128k/needlebench_v2_multi_reasoning_128k.py
                  (89b42f99436c0c43f309aa7cbd33fae1bcc714f0) and needlebench_v2_single_128k.py
                  (3e3f6ee1fc7ae5ba6110150e1730fea3e8b6c98d)
    depth 40      Sculptor, arXiv 2508.04664, appendix on the setup of NeedleBench, with its five lengths

The paper's dictionary is no part of this repository. Give its path in `ACMSERVE_PI_LLM_DICTIONARY`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from acmserve.bench.eval.tasks import needlebench, pi_llm
from acmserve.bench.eval.tasks.registry import TASKS, make_samples, read_data

KEYS = """
    Asian place | African place | American place | European place | built environment | land vehicle | water body
    visual art | aquatic animal | Tech | action | aircraft | beverage | bird | body | bug | chemical | climate
    clothing | condiment | cosmos | dance | dessert | dish | electronics | emotion | festival | fruit | furnishing
    gaming | illness | landform | law | material | measurement | music | mythology | physics | plant | profession
    programming | quodruped | sport | tools | watercraft | weapon
"""
RELATIONS = {
    *("father", "mother", "dad", "mom", "grandfather", "grandmother", "maternal grandmother", "maternal grandfather"),
    *("paternal grandfather", "paternal grandmother"),
}
DICTIONARY = Path(os.environ.get("ACMSERVE_PI_LLM_DICTIONARY", ""))


def keys_of_the_paper() -> set[str]:
    return {key.strip() for key in re.split(r"[|\n]", KEYS) if key.strip()}


def test_pi_llm_has_the_46_keys_of_the_paper() -> None:
    assert len(keys_of_the_paper()) == len(pi_llm.TRACKED_KEYS) == 46
    assert set(pi_llm.TRACKED_KEYS) == keys_of_the_paper()
    assert {key: len(values) for key, values in made_values().items()} == dict.fromkeys(pi_llm.TRACKED_KEYS, 400)


def made_values() -> dict[str, set[str]]:
    """The values of each key in a stream that takes all of them."""
    (sample,) = make_samples(TASKS["pi-llm"], 1, 0, {"keys": (46,), "updates": (400,)})
    found: dict[str, set[str]] = {}
    for key, value in re.findall(r"([^;:\n]+): ([^;]+);", sample.context.rpartition("\n")[2]):
        found.setdefault(key.strip(), set()).add(value)
    return found


def test_pi_llm_is_updated_as_often_as_in_the_papers_own_runs() -> None:
    assert TASKS["pi-llm"].published == {
        "keys": (46,),
        "updates": (2, 3, 4, 6, 8, 12, 17, 24, 34, 48, 68, 97, 139, 197, 281, 400),
    }


@pytest.mark.skipif(not DICTIONARY.is_file(), reason="ACMSERVE_PI_LLM_DICTIONARY names no file")
def test_the_papers_dictionary_is_taken_whole_and_each_of_its_values_can_be_right() -> None:
    dictionary = pi_llm.check_dictionary(read_data(DICTIONARY))
    assert tuple(dictionary) == pi_llm.TRACKED_KEYS
    assert {len(set(values)) for values in dictionary.values()} == {400}
    for number in range(400):
        values = {key: dictionary[key][number] for key in dictionary}
        said = "".join(f"The current value of {key} is {value}.\n" for key, value in values.items())
        assert pi_llm.share_of_values(said, values) == 1.0


def test_needlebench_has_the_ten_relations_of_the_data_set() -> None:
    assert len(needlebench.RELATIONS) == 10
    assert set(needlebench.RELATIONS) == RELATIONS


def test_needlebench_has_the_papers_needles_lengths_and_depths() -> None:
    assert TASKS["needlebench"].published == {
        "needles": (2, 3, 4, 5),
        "tokens": (1_000, 2_000, 16_000, 64_000, 128_000),
        "depth": (40,),
    }
    assert needlebench.DEPTHS == (0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100)


def test_each_needle_stands_ten_percent_of_the_text_behind_the_one_before() -> None:
    samples = make_samples(TASKS["needlebench"], 1, 3, {"needles": (5,), "tokens": (8_000,), "depth": (0, 40)})
    for sample, first in zip(samples, (0, 40), strict=True):
        text = sample.context
        places = [text[: text.index(needle)].count(" ") / text.count(" ") for needle in sample.facts["needles"]]
        assert places == pytest.approx([first / 100 + number / 10 for number in range(5)], abs=0.01)
