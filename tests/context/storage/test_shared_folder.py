"""The data folder of several API servers, and a start with another number of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from acmserve.context.storage.session_store import SessionLimits, SessionStore
from acmserve.context.storage.shared_folder import check_data_dir, share_of
from acmserve.context.storage.sqlite import Archive
from acmserve.errors import AcmError

LIMITS = SessionLimits()


def keep_one(folder: Path, index: int, num_servers: int) -> None:
    store = SessionStore(LIMITS, Archive(share_of(folder, index, num_servers)))
    store.create("", "agent-7")
    store.close()


@pytest.mark.parametrize(("before", "now"), [(1, 2), (2, 1), (2, 3)])
def test_another_number_of_servers_is_refused(tmp_path: Path, before: int, now: int) -> None:
    check_data_dir(tmp_path, before, LIMITS)
    check_data_dir(tmp_path, now, LIMITS)
    keep_one(tmp_path, before - 1, before)
    check_data_dir(tmp_path, before, LIMITS)
    remedy = "without --api-server-count" if before == 1 else f"with --api-server-count {before}"
    with pytest.raises(AcmError, match=remedy) as refused:
        check_data_dir(tmp_path, now, LIMITS)
    assert "\n" not in str(refused.value)


def test_each_server_has_a_file_of_its_own(tmp_path: Path) -> None:
    check_data_dir(tmp_path, 2, LIMITS)
    files = sorted(str(each.parent.relative_to(tmp_path)) for each in tmp_path.rglob("sessions.sqlite3"))
    assert files == ["api-server-0-of-2", "api-server-1-of-2"]
    assert share_of(tmp_path, 0, 1) == tmp_path
