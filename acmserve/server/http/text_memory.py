"""What was made of texts, remembered for the tenant whose request runs.

    tenant, text --keyed digest--> value      another tenant's value of the same text is not found

So the time that a request takes says nothing of the texts of others. No text is kept, for it may be redacted. The key
of the digests is drawn when the process starts, so nobody can look a text up by its digest. A server without API keys
has one tenant, or one for each cache salt.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from acmserve.errors import IntegrityError
from acmserve.server.http.tenants import TENANT

_SECRET = secrets.token_bytes(32)

V = TypeVar("V")


def text_digest(tenant: str, text: str) -> bytes:
    """What stands for a text of a tenant's in this process."""
    told = f"{tenant}\n{text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(told, digest_size=16, key=_SECRET).digest()


class TextMemory(Generic[V]):
    """The values cost at most `max_cost` together. Over that, those used longest ago go.

    `cost` is that of one value, 1 where nothing else is said.
    """

    def __init__(self, max_cost: int, cost: Callable[[V], int] = lambda _: 1) -> None:
        self._values: OrderedDict[bytes, V] = OrderedDict()
        self._max_cost = max_cost
        self._cost = cost
        self._num_used = 0

    def of(self, text: str, make: Callable[[str], V]) -> V:
        """The value of a text, made where it is not known."""
        digest = text_digest(TENANT.get(), text)
        value = self.find(digest)
        if value is None:
            value = make(text)
            self.keep(digest, value)
        return value

    def find(self, digest: bytes) -> V | None:
        """The value of a digest, which is now the one used last."""
        value = self._values.get(digest)
        if value is not None:
            self._values.move_to_end(digest)
        return value

    def keep(self, digest: bytes, value: V) -> None:
        """Remember a value, as the one used last."""
        old = self._values.pop(digest, None)
        self._num_used += self._cost(value) - (0 if old is None else self._cost(old))
        self._values[digest] = value
        while self._num_used > self._max_cost:
            _, dropped = self._values.popitem(last=False)
            self._num_used -= self._cost(dropped)

    def __len__(self) -> int:
        """Values that are known."""
        return len(self._values)

    def check_integrity(self) -> None:
        """Raise `IntegrityError` with the numbers when the bound is broken, or what is used is miscounted."""
        num_used = sum(map(self._cost, self._values.values()))
        if num_used != self._num_used or num_used > self._max_cost:
            raise IntegrityError(f"texts: {self._num_used} counted, {num_used} used, at most {self._max_cost} may be")
