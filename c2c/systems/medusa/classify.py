"""Classifiers of the words in a node's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal

from c2c.errors import SettingError
from c2c.systems.medusa.ir import Node, Patch
from c2c.systems.medusa.owners import Owners
from c2c.systems.program import TENSOR_MAP_BYTES, DeviceFault, Entry

__all__ = ["CLASSIFIERS", "Classifier", "Refused", "patches_of"]

Classifier = Literal["paper", "ptx", "differential"]
CLASSIFIERS: Final = ("paper", "ptx", "differential")

# Returns a tensor map with another address: `cuTensorMapReplaceAddress`.
ReplaceAddress = Callable[[bytes, int], bytes]

_PREFIX_BITS: Final = 40  # the paper's "high address prefix", which it does not give
_POINTERS: Final = {"copy": (0, 1), "fill": (0,)}


class Refused(Exception):
    """Error for a word without class, with reason."""

    def __init__(self, parameter: int, offset: int, why: str) -> None:
        super().__init__(why)
        self.parameter, self.at, self.why = parameter, offset, why


@dataclass(frozen=True, slots=True)
class Seen:
    """A captured node, with owners of addresses at its launch."""

    node: Node
    owners: Owners


def patches_of(
    classifier: Classifier,
    first: Seen,
    second: Seen,
    *,
    entry: Entry | None,
    replace_address: ReplaceAddress,
) -> tuple[Patch, ...]:
    """Return the addresses in a node's parameters, as patches."""
    kind = first.node.kind
    if classifier not in CLASSIFIERS:
        raise SettingError("classifier", classifier, f"one of {', '.join(CLASSIFIERS)}")
    if classifier == "differential":
        return tuple(_differing(first, second, replace_address))
    if kind in _POINTERS:
        return tuple(_typed(first, _POINTERS[kind]))
    if kind != "kernel":
        return ()
    if classifier == "paper":
        return tuple(_paper(first))
    if entry is None:
        raise Refused(0, 0, "the kernel has no PTX declaration")
    return tuple(_declared(first, entry))


def _typed(seen: Seen, pointers: tuple[int, ...]) -> Iterator[Patch]:
    for k in pointers:
        owner = seen.owners.latest(int.from_bytes(seen.node.parameters[k], "little"))
        if owner is None:
            raise Refused(k, 0, "belongs to no allocation")
        yield Patch(k, 0, *owner)


def _paper(seen: Seen) -> Iterator[Patch]:
    for k, parameter in enumerate(seen.node.parameters):
        word = int.from_bytes(parameter, "little")
        if len(parameter) == 8 and word >> _PREFIX_BITS == 0x7F:
            owner = seen.owners.latest(word)
            if owner is not None:
                yield Patch(k, 0, *owner)


def _declared(seen: Seen, entry: Entry) -> Iterator[Patch]:
    for k, (parameter, declaration) in enumerate(
        zip(seen.node.parameters, entry.parameters, strict=True)
    ):
        if declaration.is_pointer:
            yield from _typed(seen, (k,))
        elif len(parameter) > 8:
            for offset in range(0, len(parameter) - 7, 8):
                if seen.owners.live(int.from_bytes(parameter[offset : offset + 8], "little")):
                    raise Refused(k, offset, "may be an address in a struct, unknown to PTX")


def _differing(first: Seen, second: Seen, replace_address: ReplaceAddress) -> Iterator[Patch]:
    pairs = zip(first.node.parameters, second.node.parameters, strict=True)
    for k, (one, two) in enumerate(pairs):
        if one == two:
            continue
        if len(one) != len(two):
            raise Refused(k, 0, f"has {len(one)} bytes in one capture and {len(two)} in the other")
        yield from _words(k, one, two, first.owners, second.owners, replace_address)


def _words(
    k: int, one: bytes, two: bytes, first: Owners, second: Owners, replace_address: ReplaceAddress
) -> Iterator[Patch]:
    position = 0
    while position < len(one):
        a, b = one[position : position + 8], two[position : position + 8]
        if a == b:
            position += 8
            continue
        if len(a) < 8:
            raise Refused(k, position, "differs between two captures and is no whole word")
        words = int.from_bytes(a, "little"), int.from_bytes(b, "little")
        other = second.live(words[1])
        both = [place for place in first.live(words[0]) if place in other]
        if len(both) != 1:
            raise Refused(k, position, _why(words, is_double=bool(both)))
        ((allocation, offset),) = both
        end = position + TENSOR_MAP_BYTES
        is_map = end <= len(one) and one[position + 8 : end] != two[position + 8 : end]
        is_map = (
            is_map
            and _with_address(one[position:end], words[1], replace_address) == two[position:end]
        )
        yield Patch(k, position, allocation, offset, is_map)
        position += TENSOR_MAP_BYTES if is_map else 8


def _with_address(data: bytes, address: int, replace_address: ReplaceAddress) -> bytes | None:
    try:
        return replace_address(data, address)
    except DeviceFault:  # a struct of addresses, which is no tensor map
        return None


def _why(words: tuple[int, int], *, is_double: bool) -> str:
    if is_double:
        return "may belong to two allocations"
    return (
        f"differs between two captures ({words[0]:#x}, {words[1]:#x}), but is not the same offset "
        "in the same live allocation"
    )
