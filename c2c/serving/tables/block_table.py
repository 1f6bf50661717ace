"""Table of reusable KV blocks in every memory (the prefix cache)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np

from c2c.policies import jitable

__all__ = [
    "CALLED_TOOL",
    "ENDED",
    "NO_ROW",
    "SEEN",
    "Blocks",
    "add",
    "clear",
    "drop",
    "find",
    "give_way",
    "keep_copy",
    "new_blocks",
    "pin",
    "touch",
    "unpin",
]

NO_ROW = -1

ENTRY_DTYPE = np.dtype(
    [
        ("key", "i8"),  # of the prefix that ends with this block
        ("bytes", "f8"),
        ("tokens", "i4"),  # fewer than a block's at the end of a prompt
        ("parent", "i4"),  # the row of the block before it in the same pool; NO_ROW: none
        ("children", "i4"),  # blocks that follow it in the same pool
        ("pins", "i4"),  # requests that use it
        ("older", "i4"),  # in the list of those that nobody uses
        ("newer", "i4"),
        ("chain", "i4"),  # the next row of the same bucket; of free rows the next free one
        ("pool", "i2"),
        ("use", "i2"),  # the last one that ended: SEEN, ENDED or CALLED_TOOL
        ("until_s", "f8"),  # up to which an option keeps it
    ],
    align=True,
)

# The last use of an unused block, for options.
SEEN: Final = 0  # an option has noted it
ENDED: Final = 1
CALLED_TOOL: Final = 2  # by an answer that calls a tool, so that its session goes on

POOL_DTYPE = np.dtype(
    [
        ("oldest", "i8"),  # of the list
        ("newest", "i8"),
        ("rows", "i8"),
        ("bytes", "f8"),  # of all its entries
        ("idle_bytes", "f8"),  # of those that nobody uses
        ("capacity_bytes", "f8"),  # of host memory; HBM has what is left
        ("in_bytes", "f8"),  # copied in from another pool
        ("evicted_bytes", "f8"),
        ("evicted", "i8"),
    ],
    align=True,
)

TABLE_DTYPE = np.dtype(
    [
        ("free", "i8"),  # the first row that was used and is free; NO_ROW: none
        ("begun", "i8"),  # rows that were ever used
        ("block_tokens", "i8"),
        ("keeps_hbm", "i8"),  # 0: HBM forgets a block with its last user
        # of requests that carry blocks, once each, as they first join a batch
        ("asked_tokens", "i8"),  # of their prompts
        ("found_hbm_tokens", "i8"),  # of these
        ("found_host_tokens", "i8"),
        ("gone", "i8"),  # of `Blocks.gone`: forgotten, and the backend was not told yet
    ]
)


class Blocks(NamedTuple):
    """The block table, and each request's rows.

    An entry is a block in a pool (a device's HBM, a chip's host memory), by its prefix's hash.
    Entries in use are pinned; others are in their pool's list, least recently used first. A block
    is evicted after its followers in the pool. No function allocates.
    """

    entry: Any  # ENTRY_DTYPE [rows]
    bucket: Any  # i4[power of two], the first row + 1
    pool: Any  # POOL_DTYPE [devices + chips]
    table: Any  # TABLE_DTYPE [1]
    keys: Any  # i8[slots, blocks] of a request's prompt
    rows: Any  # i4[slots, blocks] of those that it uses
    gone: Any  # i8[n, 2] pool and key of forgotten blocks; n = 0 where no backend is told

    def copy(self) -> Blocks:
        """Return an independent copy of the table."""
        return Blocks(*(field.copy() for field in self))

    def grown(self, slots: int, most: int) -> Blocks:
        """Return the table with columns for more requests or blocks."""
        rows, columns = self.keys.shape
        if slots <= rows and most <= columns:
            return self
        room = ((0, max(0, slots - rows)), (0, max(0, most - columns)))
        return self._replace(keys=np.pad(self.keys, room), rows=np.pad(self.rows, room))


def new_blocks(
    pools: int,
    host_bytes: np.ndarray | None = None,
    *,
    rows: int = 1,
    slots: int = 1,
    most: int = 1,
    block_tokens: int = 0,
    keeps_hbm: bool = True,
    tells: bool = False,
) -> Blocks:
    """Return an empty table."""
    pool = np.zeros(pools, POOL_DTYPE).view(np.recarray)
    pool.oldest, pool.newest = NO_ROW, NO_ROW
    if host_bytes is not None:
        pool.capacity_bytes[pools - len(host_bytes) :] = host_bytes
    table = np.zeros(1, TABLE_DTYPE).view(np.recarray)
    table.free, table.block_tokens, table.keeps_hbm = NO_ROW, block_tokens, int(keeps_hbm)
    return Blocks(
        entry=np.zeros(rows, ENTRY_DTYPE).view(np.recarray),
        bucket=np.zeros(1 << max(1, (rows * 3 // 2).bit_length()), np.int32),
        pool=pool,
        table=table,
        keys=np.zeros((slots, most), np.int64),
        rows=np.zeros((slots, most), np.int32),
        gone=np.zeros((2 * rows if tells else 0, 2), np.int64),  # an event adds at most all rows
    )


@jitable
def _bucket_of(b: Blocks, p: int, key: int) -> int:
    return int((key ^ (p * 40503)) & (len(b.bucket) - 1))


@jitable
def find(b: Blocks, p: int, key: int) -> int:
    """Return the row of a block in pool `p`, or NO_ROW."""
    k = int(b.bucket[_bucket_of(b, p, key)]) - 1
    while k >= 0 and (b.entry[k].key != key or b.entry[k].pool != p):
        k = int(b.entry[k].chain)
    return k


@jitable
def _append_idle(b: Blocks, k: int) -> None:
    e = b.entry[k]
    pool = b.pool[e.pool]
    e.older, e.newer = pool.newest, NO_ROW
    if pool.newest >= 0:
        b.entry[pool.newest].newer = k
    else:
        pool.oldest = k
    pool.newest = k
    pool.idle_bytes += e.bytes


@jitable
def _unlink_idle(b: Blocks, k: int) -> None:
    e = b.entry[k]
    pool = b.pool[e.pool]
    if e.older >= 0:
        b.entry[e.older].newer = e.newer
    else:
        pool.oldest = e.newer
    if e.newer >= 0:
        b.entry[e.newer].older = e.older
    else:
        pool.newest = e.older
    pool.idle_bytes -= e.bytes


@jitable
def pin(b: Blocks, k: int) -> None:
    """Pin an entry until `unpin`."""
    if b.entry[k].pins == 0:
        _unlink_idle(b, k)
    b.entry[k].pins += 1


@jitable
def unpin(b: Blocks, k: int, use: int) -> bool:
    """Unpin an entry; return whether none is left."""
    e = b.entry[k]
    e.pins -= 1
    e.use = use
    if e.pins > 0:
        return False
    _append_idle(b, k)
    return True


@jitable
def touch(b: Blocks, k: int) -> None:
    """Make an unpinned entry the last used."""
    pin(b, k)
    unpin(b, k, ENDED)


@jitable
def drop(b: Blocks, k: int) -> None:
    """Drop an unused entry."""
    _unlink_idle(b, k)
    e = b.entry[k]
    spot = _bucket_of(b, int(e.pool), e.key)
    index = int(b.bucket[spot]) - 1
    if index == k:
        b.bucket[spot] = e.chain + 1
    else:
        while b.entry[index].chain != k:
            index = int(b.entry[index].chain)
        b.entry[index].chain = e.chain
    if e.parent >= 0:
        b.entry[e.parent].children -= 1
    if len(b.gone) > 0:
        b.gone[b.table[0].gone, 0], b.gone[b.table[0].gone, 1] = e.pool, e.key
        b.table[0].gone += 1
    pool = b.pool[e.pool]
    pool.rows -= 1
    pool.bytes -= e.bytes
    e.pool = -1
    e.chain = b.table[0].free
    b.table[0].free = k


@jitable
def add(b: Blocks, p: int, key: int, parent: int, tokens: int, nbytes: float) -> int:
    """Add an entry with room, pinned; return its row or NO_ROW."""
    table = b.table[0]
    if table.free >= 0:
        k = int(table.free)
        table.free = b.entry[k].chain
    elif table.begun < len(b.entry):
        k = int(table.begun)
        table.begun += 1
    else:
        return NO_ROW
    e = b.entry[k]
    e.key, e.pool, e.tokens, e.bytes, e.parent = key, p, tokens, nbytes, parent
    e.children, e.pins = 0, 1
    e.use, e.until_s = ENDED, np.inf
    e.older, e.newer = NO_ROW, NO_ROW
    if parent >= 0:
        b.entry[parent].children += 1
    spot = _bucket_of(b, p, key)
    e.chain = b.bucket[spot] - 1
    b.bucket[spot] = k + 1
    pool = b.pool[p]
    pool.rows += 1
    pool.bytes += nbytes
    return k


@jitable
def _victim(b: Blocks, p: int) -> int:
    # The block of pool p that is unused for longest, of those that no other follows.
    k = int(b.pool[p].oldest)
    while k >= 0 and b.entry[k].children != 0:
        k = int(b.entry[k].newer)
    return k


@jitable
def give_way(b: Blocks, p: int, most_bytes: float) -> None:
    """Drop unused blocks of pool `p` down to a size."""
    pool = b.pool[p]
    while pool.idle_bytes > most_bytes and pool.oldest >= 0:
        k = _victim(b, p)
        if k < 0:
            return  # what follows them is in use
        pool.evicted += 1
        pool.evicted_bytes += b.entry[k].bytes
        drop(b, k)


@jitable
def keep_copy(b: Blocks, p: int, k: int, parent: int) -> int:
    """Copy a block into pool `p`, pinned; return its row or NO_ROW."""
    e = b.entry[k]
    there = find(b, p, e.key)
    if there >= 0:
        pin(b, there)
        return there
    pool = b.pool[p]
    room = pool.capacity_bytes - (pool.bytes - pool.idle_bytes) - e.bytes
    if room < 0.0:
        return NO_ROW
    give_way(b, p, room)
    if pool.bytes + e.bytes > pool.capacity_bytes:
        return NO_ROW
    there = add(b, p, e.key, parent, int(e.tokens), e.bytes)
    if there >= 0:
        pool.in_bytes += e.bytes
    return there


@jitable
def clear(b: Blocks, p: int) -> None:
    """Drop all unused blocks of pool `p`, whose memory is gone."""
    while b.pool[p].newest >= 0:
        drop(b, int(b.pool[p].newest))
