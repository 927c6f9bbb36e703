"""JSON becomes dataclasses, or an exception that names the place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from acmserve.client.decoding import decode
from acmserve.client.errors import UnreadableAnswer


@dataclass(frozen=True)
class Leaf:
    num: int
    share: float = 1.0


@dataclass(frozen=True)
class Tree:
    name: str
    leaves: tuple[Leaf, ...]
    kind: Literal["oak", "elm"]
    mark: str | None
    by_name: dict[str, int]
    path: tuple[str | int, ...] = ()
    is_old: bool = False
    anything: Any = None


GIVEN = {"name": "a", "leaves": [{"num": 1}, {"num": 2, "share": 3}], "kind": "oak", "mark": None, "by_name": {"x": 1}}


def test_every_type_is_read() -> None:
    more = {"path": ["a", 0], "is_old": True, "anything": {"b": [None]}, "new_field": 1}
    assert decode(Tree, GIVEN | more, "tree") == Tree(
        "a", (Leaf(1), Leaf(2, 3)), "oak", None, {"x": 1}, ("a", 0), True, {"b": [None]}
    )
    assert decode(Tree, GIVEN, "tree").path == ()


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"name": 1}, "tree.name"),
        ({"name": None}, "tree.name"),
        ({"leaves": {}}, "tree.leaves"),
        ({"leaves": [{"num": 1}, {"num": "2"}]}, "tree.leaves[1].num"),
        ({"leaves": [{"num": True}]}, "tree.leaves[0].num"),
        ({"leaves": [7]}, "tree.leaves[0]"),
        ({"leaves": [{}]}, "tree.leaves[0].num"),
        ({"leaves": [{"num": 1, "share": "a"}]}, "tree.leaves[0].share"),
        ({"kind": "ash"}, "tree.kind"),
        ({"kind": []}, "tree.kind"),
        ({"by_name": []}, "tree.by_name"),
        ({"by_name": {"x": 1.5}}, "tree.by_name.x"),
        ({"path": [None]}, "tree.path[0]"),
        ({"is_old": 1}, "tree.is_old"),
    ],
)
def test_what_is_otherwise_is_named(change: dict[str, Any], where: str) -> None:
    with pytest.raises(UnreadableAnswer) as caught:
        decode(Tree, GIVEN | change, "tree")
    assert caught.value.where == where
    assert str(caught.value).startswith(f"{where} ")
