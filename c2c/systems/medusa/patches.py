"""Parameters of a node in another process."""

from __future__ import annotations

from collections.abc import Sequence

from c2c.systems.medusa.classify import ReplaceAddress
from c2c.systems.medusa.ir import Node
from c2c.systems.program import TENSOR_MAP_BYTES

__all__ = ["bytes_of", "patched"]


def patched(
    node: Node,
    addresses: Sequence[int] | None,
    values: Sequence[int | None],
    replace_address: ReplaceAddress,
) -> tuple[bytes, ...]:
    """Return a node's patched parameters."""
    parameters: list[bytes] = list(node.parameters)
    for number, position, allocation, offset, is_map in (
        node.patches if addresses is not None else ()
    ):
        address = addresses[allocation] + offset  # type: ignore[index]
        old = parameters[number]
        if is_map:
            end = position + TENSOR_MAP_BYTES
            word = replace_address(old[position:end], address)
        else:
            end = position + 8
            word = address.to_bytes(8, "little")
        parameters[number] = (
            word if len(old) == end - position else old[:position] + word + old[end:]
        )
    for number, position, nbytes, name in node.told:
        value = values[name]
        if value is None:
            raise ValueError(f"told value {name} is missing")
        old = parameters[number]
        parameters[number] = old[:position] + bytes_of(value, nbytes) + old[position + nbytes :]
    return tuple(parameters)


def bytes_of(value: int, nbytes: int) -> bytes:
    """Return an integer as little-endian bytes, in two's complement."""
    return (value & ((1 << 8 * nbytes) - 1)).to_bytes(nbytes, "little")
