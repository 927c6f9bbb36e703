"""What vLLM's cache must do, tried on small objects: a signature does not tell what a method means.

    behaviour    what is tried                                                                who relies on it
    hashes       without marks ours are vLLM's own. A mark changes its block and those behind  `lineage_hasher.py`
    index        a tail is found under its key, and by nobody once it was evicted              `register_tail`
    queue        freed blocks wait in their order, and blocks put in front go first            `queue_behind`
    reuse        a watched block is told when it is handed out, and counts as free before      `queue_behind`
    references   a touched block is not handed out                                             pins of a move

Knows no engine, model or device. The steps of the schedulers are tried by the simulator of the tests.

Decision: every start tries them, whatever the version. A version string says what was tested, never what holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from acmserve.engine.vllm.block_pool import cached_block, evict_keys, queue_behind, register_tail

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_utils import KVCacheBlock

_BLOCK_SIZE = 4
_KEY = b"behaviour".ljust(32, b"-")


@dataclass(frozen=True, slots=True)
class Behaviour:
    """`find` tells what did not hold, or None."""

    name: str
    find: Callable[[], str | None]


def broken_behaviours(behaviours: Iterable[Behaviour]) -> list[str]:
    """What does not hold, one line each. A check that vLLM ends by an exception did not hold either."""
    return [f"{behaviour.name}: {problem}" for behaviour in behaviours if (problem := _problem(behaviour)) is not None]


def _problem(behaviour: Behaviour) -> str | None:
    try:
        return behaviour.find()
    except Exception as error:  # noqa: BLE001 -- whatever another vLLM raises is the finding
        return f"{type(error).__name__}: {error}"


def _pool(num_blocks: int) -> BlockPool:
    """A pool of so many blocks that hold nothing. vLLM keeps one more, its null block."""
    from vllm.v1.core.block_pool import BlockPool

    return BlockPool(num_gpu_blocks=num_blocks + 1, enable_caching=True, hash_block_size=_BLOCK_SIZE)


def _cached(pool: BlockPool, num_blocks: int) -> Iterator[KVCacheBlock]:
    """Blocks in use that are registered, each under a key of its own."""
    for index, block in enumerate(pool.get_new_blocks(num_blocks)):
        register_tail(pool, [block.block_id], _key(index), _BLOCK_SIZE)
        yield block


def _key(index: int) -> bytes:
    return bytes([index]) + _KEY[1:]


def _hashes() -> str | None:
    """Behind a first hash that is given, for vLLM's root of all hashes belongs to the engine of this process."""
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import BlockHash, get_request_block_hasher
    from vllm.v1.request import Request

    from acmserve.engine.vllm.lineage_hasher import LineageHasher
    from acmserve.plan.lineage import LineageMark

    request = Request("behaviour", list(range(4 * _BLOCK_SIZE + 1)), SamplingParams(max_tokens=1), None)
    request.block_hashes[:] = [BlockHash(_KEY)]
    stock = list(get_request_block_hasher(_BLOCK_SIZE, sha256)(request))
    marks: list[LineageMark] = []
    hasher = LineageHasher(sha256, _BLOCK_SIZE, marks)
    if len(stock) != 3 or hasher(request) != stock:
        return "vLLM makes other block hashes"
    marks.append(LineageMark(2 * _BLOCK_SIZE + 1, b"mark"))
    marked = hasher(request)
    if marked[0] != stock[0] or marked[1] == stock[1] or marked[2] == stock[2]:
        return "an extra key does not change the hash of its block and of those behind it"
    return None


def _index() -> str | None:
    pool = _pool(2)
    (block,) = _cached(pool, 1)
    found = cached_block(pool, _key(0))
    if found is None or found.block_id != block.block_id:
        return "a registered block is not found"
    evict_keys(pool, [_key(0)])
    if cached_block(pool, _key(0)) is not None or block.block_hash is not None or block.ref_cnt != 1:
        return "an evicted block is still found, or no longer its holder's"
    return None


def _queue() -> str | None:
    pool = _pool(6)
    tail, *others = blocks = list(_cached(pool, 4))
    pool.free_blocks(others)
    pool.free_blocks([tail])
    queue_behind(pool, [tail], None, lambda block: None, move=True)
    empty = [block for block in pool.free_block_queue.iter_blocks_after(None) if block not in blocks]
    expected = [block.block_id for block in (*empty, tail, *others)]
    handed = [block.block_id for block in pool.get_new_blocks(6)]
    return None if handed == expected else f"free blocks were handed out as {handed}, expected {expected}"


def _reuse() -> str | None:
    pool, unpinned = _pool(3), list[int]()
    blocks = list(_cached(pool, 2))
    pool.unpin_blocks(blocks, lambda block: unpinned.append(block.block_id))
    if unpinned or pool.get_num_free_blocks() != 3:
        return "a watched block does not wait as a free one"
    handed = [block.block_id for block in pool.get_new_blocks(3)]
    return None if unpinned == handed[1:] else f"blocks {handed} were handed out, and told of {unpinned}"


def _references() -> str | None:
    pool = _pool(2)
    (block,) = _cached(pool, 1)
    pool.free_blocks([block])
    pool.touch([block])
    if pool.get_num_free_blocks() != 1 or pool.get_new_blocks(1) == [block]:
        return "a touched block is handed out"
    pool.free_blocks([block])
    return None if pool.get_num_free_blocks() == 1 else "a block that was let go is not free"


BEHAVIOURS: tuple[Behaviour, ...] = (
    Behaviour("hashes", _hashes),
    Behaviour("index", _index),
    Behaviour("queue", _queue),
    Behaviour("reuse", _reuse),
    Behaviour("references", _references),
)
