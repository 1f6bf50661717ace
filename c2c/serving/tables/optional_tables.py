"""Tables of what most fleets lack."""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["AdapterSlots", "Adapters", "KvHomes"]


class KvHomes(NamedTuple):
    """Memories of a chip that its lanes share, and KV homes."""

    room_bytes: Any  # f8[memories]
    homes: Any  # i8[kind] of a lane; 0: it has memory of its own
    token_bytes: Any  # f8[pair, homes, memories] whole bytes
    is_open: Any  # i8[kind, variants, homes]
    copied_bytes: Any  # f8[kind, variants, memories] weights that a variant needs
    reserve_bytes: Any  # f8[kind, memories] that other lanes leave free
    sent_bytes: Any  # f8[kind, variants, variants, ways] weights that a change sends
    moved_bytes: Any  # f8[pair, homes, homes, ways] of a token that changes its home
    reliefs: Any  # i8[1] as `StepLayout.reliefs`


class Adapters(NamedTuple):
    """Adapters of a catalog, by entry; made by `c2c.serving.prepare.adapters`."""

    base: Any  # i8[D] entry that serves an entry's requests: its base, or itself
    nbytes: Any  # f8[D] 0: no adapter
    token_s: Any  # f8[D, kind] of a row, without the adapter's own bytes
    token_bytes: Any  # f8[D] of a row, in HBM
    launch_s: Any  # f8[arch, kind] of a step with any adapter
    hbm_rate: Any  # f8[kind] bytes/s at which products read HBM
    link_rate: Any  # f8[kind] bytes/s over the link, alone
    slots: int  # adapters of an instance in HBM; 0: each step reads its own over the link


class AdapterSlots(NamedTuple):
    """Adapters in HBM by instance; empty arrays without adapters."""

    model: Any  # i8[instances, slots] -1: none
    users: Any  # i8[instances, slots] requests of the batch
    used_at: Any  # i8[instances, slots] clock of the last claim
    coming_bytes: Any  # f8[instances] that the next step copies
    counted_at: Any  # i8[D] clock of the last step that counted an adapter
    clock: Any  # i8[1] claims and steps

    def copy(self) -> AdapterSlots:
        """Return a copy."""
        return AdapterSlots(*(array.copy() for array in self))
