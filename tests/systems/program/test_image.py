"""Facts that are read from PTX."""

from __future__ import annotations

import pytest

from c2c.errors import DataError
from c2c.systems.program import Access, Entry, ParameterDeclaration, entries_of, write_image

# As LLVM writes kernels of XLA and of Pallas.
PTX = b"""
.version 8.6
.target sm_90a
.address_size 64

	// .globl	fusion_1
// access 0 0 pointer r 64
.visible .entry fusion_1(
	.param .u64 .ptr .align 16 fusion_1_param_0,
	.param .u64 .ptr .global .align 16 fusion_1_param_1,
	.param .u32 fusion_1_param_2
)
.reqntid 128, 1, 1
{
	ret;
}
.visible .entry mosaic(
	.param .align 64 .b8 mosaic_param_0[384]
)
{
	ret;
}
"""


def test_parameters_of_kernels() -> None:
    first, second = entries_of(PTX)
    assert first.name == "fusion_1"
    assert [p.is_pointer for p in first.parameters] == [True, True, False]
    assert [tuple(p) for p in first.places] == [(0, 8), (8, 8), (16, 4)]
    assert first.accesses == (Access(0, 0, "pointer", "r", 64),)
    assert second.parameters == (ParameterDeclaration(384, 64),)
    assert second.accesses == ()


def test_a_device_side_allocation_is_seen() -> None:
    entry = Entry("grows", (), (), allocates=True)
    assert entries_of(write_image([entry])) == (entry,)


@pytest.mark.parametrize(
    ("image", "why"),
    [
        (b"\xff\xfe cubin", "no PTX|not PTX"),
        (b".version 8.6", "no .visible .entry"),
        (b"// access 1 0 pointer r 8\n.visible .entry k(.param .u64 a)\n{}", "outside"),
        (b"// access 0 8 map r 8\n.visible .entry k(.param .u64 a)\n{}", "outside"),
    ],
)
def test_what_is_no_image_is_refused(image: bytes, why: str) -> None:
    with pytest.raises(DataError, match=why):
        entries_of(image)
