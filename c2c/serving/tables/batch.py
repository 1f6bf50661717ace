"""An instance's batch."""

from __future__ import annotations

from c2c.policies import inlined, jitable
from c2c.serving.tables.state import ENDS_AT, LENGTH, SLOT, Serving

__all__ = [
    "batch_size",
    "generated",
    "keep_decode",
    "kv_tokens",
    "member",
    "outstanding",
    "place_among_decodes",
    "remove_decode",
    "remove_prompt",
    "tokens_left",
]


@inlined
def batch_size(s: Serving, i: int) -> int:
    """Count requests in the batch of instance `i`."""
    return int(s.instance[i].n_prefill + s.instance[i].n_decode)


@inlined
def outstanding(s: Serving, i: int) -> int:
    """Count requests of instance `i`, its queue included."""
    inst = s.instance[i]
    return int(inst.n_wait + inst.n_prefill + inst.n_decode)


@inlined
def member(s: Serving, i: int, k: int) -> int:
    """Return request `k`'s slot in instance `i`'s batch, decodes first."""
    n = s.instance[i].n_decode
    return int(s.decoding[i, k, SLOT] if k < n else s.prefilling[i, k - n])


@inlined
def tokens_left(s: Serving, i: int, k: int) -> int:
    """Return decode `k`'s tokens left on instance `i`."""
    return int(s.decoding[i, k, ENDS_AT] - s.instance[i].decode_clock)


@inlined
def generated(s: Serving, i: int, k: int) -> int:
    """Return decode `k`'s generated tokens on instance `i`."""
    return int(s.request[s.decoding[i, k, SLOT]].output - tokens_left(s, i, k))


@inlined
def kv_tokens(s: Serving, i: int, k: int) -> int:
    """Return the length of instance `i`'s decode `k`: prompt and answer."""
    return int(s.decoding[i, k, LENGTH] - tokens_left(s, i, k))


@jitable
def place_among_decodes(s: Serving, i: int, slot: int) -> int:
    """Return a request's index among instance `i`'s decodes, or -1."""
    for k in range(s.instance[i].n_decode):
        if s.decoding[i, k, SLOT] == slot:
            return k
    return -1


@inlined
def keep_decode(s: Serving, i: int, k: int, to: int) -> None:
    """Move decode `k` of instance `i` to the index of one that has left."""
    if to < k:
        for column in range(3):
            s.decoding[i, to, column] = s.decoding[i, k, column]


@jitable
def remove_decode(s: Serving, i: int, k: int) -> None:
    """Remove decode `k` from the batch of instance `i`."""
    s.instance[i].n_decode -= 1
    for later in range(k, s.instance[i].n_decode):
        keep_decode(s, i, later + 1, later)


@jitable
def remove_prompt(s: Serving, i: int, k: int) -> None:
    """Remove prompt `k` from the batch of instance `i`."""
    s.instance[i].n_prefill -= 1
    for later in range(k, s.instance[i].n_prefill):
        s.prefilling[i, later] = s.prefilling[i, later + 1]
