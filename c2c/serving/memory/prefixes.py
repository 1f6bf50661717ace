"""Prefix cache: prompts reuse leading KV blocks of earlier requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from c2c.policies import apart, jitable
from c2c.serving.memory.hbm import pair_of, place_bytes, room_bytes
from c2c.serving.tables.block_table import (
    CALLED_TOOL,
    ENDED,
    NO_ROW,
    Blocks,
    add,
    drop,
    find,
    give_way,
    keep_copy,
    pin,
    touch,
    unpin,
)
from c2c.serving.tables.costs import FULL
from c2c.serving.tables.state import Fleet, Loop, Serving

__all__ = [
    "begin_blocks",
    "caches_prefixes",
    "claim_prefix",
    "let_prefix_go",
    "note_computed",
    "shared_places",
    "trim_prefixes",
]


def caches_prefixes(values: Mapping[type, Any]) -> bool:
    """Return whether a run keeps prefix blocks."""
    return bool(values[Fleet].caches_prefixes)


@jitable
def begin_blocks(
    s: Serving, slot: int, keys: Any, first: int, count: int, of_prompt: int
) -> None:  # fmt: skip
    """Store the blocks of the next request in `slot`."""
    req = s.request[slot]
    req.blocks, req.prompt_blocks, req.held, req.reused = count, of_prompt, 0, 0
    req.found_hbm, req.found_host = 0, 0
    for j in range(count):
        s.blocks.keys[slot, j] = keys[first + j]


@jitable
def _tokens_of(b: Blocks, prompt: int, j: int) -> int:
    # Of block j of a prompt, whose last one may be shorter.
    size = b.table[0].block_tokens
    return int(min(size, prompt - j * size))


@jitable
def _seek(s: Serving, i: int, slot: int) -> tuple[int, int]:
    # How many leading blocks of a prompt its device holds, and how many with host memory's after
    # them. Their rows are written down.
    b, req, inst = s.blocks, s.request[slot], s.instance[i]
    prompt = int(req.prompt - req.carried)
    pool, here, count = int(inst.on_device), 0, 0
    for j in range(req.prompt_blocks):
        k = find(b, pool, b.keys[slot, j])
        if k < 0 and count == here:
            pool = len(s.device) + int(inst.chip)
            k = find(b, pool, b.keys[slot, j])
        tokens = _tokens_of(b, prompt, j)
        if k < 0 or b.entry[k].tokens > tokens:
            break
        b.rows[slot, j] = k
        count += 1
        if pool < len(s.device):
            here += 1
        if b.entry[k].tokens < tokens:
            break
    return here, count


@jitable
def _append(b: Blocks, d: int, req: Any, slot: int, tokens: int, nbytes: float) -> bool:
    # Give a request a block in HBM behind those that it holds; False: the table is full.
    j = int(req.held)
    parent = int(b.rows[slot, j - 1]) if j > 0 else NO_ROW
    k = add(b, d, b.keys[slot, j], parent, tokens, nbytes)
    if k < 0:
        return False
    b.rows[slot, j] = k
    req.held = j + 1
    return True


@apart("shared_places", needed=caches_prefixes)
def shared_places(w: Loop, i: int, slot: int) -> int:
    """Return the positions of a waiting request's used blocks."""
    b, tokens = w.s.blocks, 0
    for j in range(_seek(w.s, i, slot)[0]):
        e = b.entry[b.rows[slot, j]]
        if e.pins > 0:
            tokens += e.tokens
    return int(tokens * w.fleet.costs.holds[pair_of(w.fleet, w.s, i), FULL])


# Leading blocks in the device's HBM are shared, one copy for all; further ones are copied from the
# chip's host memory over the link before the request's step. `kv_used` counts a block once. A block
# has all layers' keys and values, also those outside a window: a prompt may begin after any block.
@apart("claim_prefix", needed=caches_prefixes)
def claim_prefix(
    w: Loop,
    i: int,
    slot: int,
) -> int:
    """Assign a request that joins instance `i` its prefix blocks in memory."""
    b, req, inst = w.s.blocks, w.s.request[slot], w.s.instance[i]
    d = int(inst.on_device)
    here, end = _seek(w.s, i, slot)
    tokens, shared = 0, 0
    for j in range(here):
        e = b.entry[b.rows[slot, j]]
        tokens += e.tokens
        if e.pins > 0:
            shared += e.tokens
        pin(b, int(b.rows[slot, j]))
    tokens_here, index, moved = tokens, here, 0.0
    while index < end:
        e = b.entry[b.rows[slot, index]]
        parent = int(b.rows[slot, index - 1]) if index > 0 else NO_ROW
        k = add(b, d, b.keys[slot, index], parent, int(e.tokens), e.bytes)
        if k < 0:
            break
        b.rows[slot, index] = k
        tokens += e.tokens
        moved += e.bytes
        index += 1
    for j in range(index - 1, here - 1, -1):
        touch(b, find(b, len(w.s.device) + int(inst.chip), b.keys[slot, j]))
    reused = min(tokens, req.prompt - 1)  # the last token's step makes the first one
    if req.again == 0 and req.carried == 0:
        req.found_hbm = min(tokens_here, reused)
        req.found_host = reused - req.found_hbm
        table = b.table[0]
        table.asked_tokens += req.prompt
        table.found_hbm_tokens += req.found_hbm
        table.found_host_tokens += req.found_host
    req.held, req.reused, req.prefilled = index, reused, reused
    inst.backlog -= reused
    b.pool[d].in_bytes += moved
    w.s.plan[d].kv_in_bytes += moved
    return int(shared * w.fleet.costs.holds[pair_of(w.fleet, w.s, i), FULL])


@apart("note_computed", needed=caches_prefixes)
def note_computed(w: Loop, i: int, slot: int) -> None:
    """Publish the ending step's prompt blocks."""
    b, req, inst = w.s.blocks, w.s.request[slot], w.s.instance[i]
    d, prompt = int(inst.on_device), int(req.prompt - req.carried)
    width = w.fleet.costs.holds[pair_of(w.fleet, w.s, i), FULL]
    token_bytes = place_bytes(w.fleet, w.s, i, width)
    done = 0
    if req.held > 0:
        done = (req.held - 1) * b.table[0].block_tokens + b.entry[b.rows[slot, req.held - 1]].tokens
    while req.held < req.prompt_blocks:
        j = int(req.held)
        tokens = _tokens_of(b, prompt, j)
        if j * b.table[0].block_tokens != done or done + tokens > req.prefilled:
            return
        k = find(b, d, b.keys[slot, j])
        if k >= 0:
            if b.entry[k].tokens != tokens:
                return
            if b.entry[k].pins > 0:
                inst.kv_used -= tokens * width
                w.s.device[d].kv_bytes -= tokens * token_bytes
            pin(b, k)
            b.rows[slot, j] = k
            req.held += 1
        elif not _append(b, d, req, slot, tokens, tokens * token_bytes):
            return
        done += tokens


@jitable
def _note_answer(fleet: Fleet, s: Serving, i: int, slot: int) -> None:
    # The whole blocks of a prompt with its answer, whose last token is in no KV cache.
    b, req, inst = s.blocks, s.request[slot], s.instance[i]
    d, size = int(inst.on_device), int(b.table[0].block_tokens)
    token_bytes = place_bytes(fleet, s, i, fleet.costs.holds[pair_of(fleet, s, i), FULL])
    while req.held < req.blocks and (req.held + 1) * size < req.prompt + req.output:
        j = int(req.held)
        if find(b, d, b.keys[slot, j]) >= 0:
            return
        if not _append(b, d, req, slot, size, size * token_bytes):
            return


@jitable
def _store(s: Serving, host: int, slot: int, use: int) -> None:
    # Host memory keeps the blocks of a request as well, from the first on, as far as they fit.
    b, parent, stored = s.blocks, NO_ROW, 0
    while stored < s.request[slot].held:
        parent = keep_copy(b, host, int(b.rows[slot, stored]), parent)
        if parent < 0:
            break
        stored += 1
    for j in range(stored - 1, -1, -1):
        unpin(b, find(b, host, b.keys[slot, j]), use)


# The blocks are copied to host memory, over the link's other direction, and stay in HBM until
# something else needs the room.
@apart("let_prefix_go", needed=caches_prefixes)
def let_prefix_go(
    w: Loop,
    i: int,
    slot: int,
    is_lost: bool,
    is_done: bool,
) -> int:
    """Unpin the blocks of a request that leaves instance `i`, last first."""
    b, req, inst = w.s.blocks, w.s.request[slot], w.s.instance[i]
    host, stays = len(w.s.device) + int(inst.chip), 0
    if is_done and req.held == req.prompt_blocks:
        _note_answer(w.fleet, w.s, i, slot)
    use = CALLED_TOOL if is_done and req.calls_tool else ENDED
    if b.pool[host].capacity_bytes > 0.0 and not is_lost:
        _store(w.s, host, slot, use)
    is_kept = b.table[0].keeps_hbm != 0 and inst.parked_bytes == 0.0 and not is_lost
    for j in range(req.held - 1, -1, -1):
        k = int(b.rows[slot, j])
        if not unpin(b, k, use):
            stays += b.entry[k].tokens
        elif not is_kept and b.entry[k].children == 0:
            drop(b, k)
    req.held = 0
    return int(stays * w.fleet.costs.holds[pair_of(w.fleet, w.s, i), FULL])


@apart("trim_prefixes", needed=caches_prefixes)
def trim_prefixes(w: Loop, d: int) -> None:
    """Evict unused blocks on device `d` for others' room."""
    give_way(w.s.blocks, d, max(0.0, room_bytes(w.s, d)))
