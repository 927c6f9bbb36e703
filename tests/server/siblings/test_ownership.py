"""Who owns a session: nobody has to be asked, and a family stays together."""

from __future__ import annotations

from collections import Counter

from acmserve.context.storage.session_names import SharedNames
from acmserve.plan.request import MAX_SESSION_ID_CHARS
from acmserve.server.identity.placement import derived_id
from acmserve.server.siblings.ownership import Ownership


def test_owners_share_evenly() -> None:
    shares = Counter(Ownership(4).owner_of("", f"agent-{number}") for number in range(2000))
    assert min(shares.values()) > 400


def test_tenants_do_not_share_an_owner_by_name() -> None:
    owners = {Ownership(2).owner_of(f"tenant-{number}", "agent-7") for number in range(20)}
    assert owners == {0, 1}


def test_a_side_thread_has_the_owner_of_its_session() -> None:
    ownership = Ownership(5)
    families = ["agent-7", "a~b", "~", "x" * MAX_SESSION_ID_CHARS, "y" * 200 + "~z" * 28, "w" * 127 + "~" + "v" * 128]
    for family in families:
        assert {ownership.owner_of("t", derived_id(family, f"task-{n}")) for n in range(40)} == {
            ownership.owner_of("t", family)
        }


def test_by_tenant_all_sessions_have_one_owner() -> None:
    ownership = Ownership(3, by_tenant=True)
    assert {ownership.owner_of("t", f"agent-{number}") for number in range(40)} == {ownership.owner_of_tenant("t")}
    assert Ownership(3).owner_of_tenant("t") is None


def test_a_drawn_name_is_owned() -> None:
    ownership = Ownership(3)
    names = SharedNames(lambda tenant, name: ownership.owner_of(tenant, name) == 1)
    assert {ownership.owner_of("t", names.settle("t", None)) for _ in range(40)} == {1}
