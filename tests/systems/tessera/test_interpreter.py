"""Instructions one by one against NumPy, and what the interpreter refuses."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from c2c.errors import DataError
from c2c.systems.program import DeviceFault
from c2c.systems.tessera.ptx import parse
from tests.systems.tessera.interpreter.interpret import interpret
from tests.systems.tessera.interpreter.memory import Memory
from tests.systems.tessera.interpreter.tensor import load_matrices, multiply
from tests.systems.tessera.ptx_text import POINTER, kernel, lanes

LOADS = "ld.global.b32 %r2, [%rd7];\n\tld.global.b32 %r3, [%rd8];"
THREADS = 96
EVERY = np.arange(THREADS)
LANE = EVERY % 32
RNG = np.random.default_rng(0)
WORDS = RNG.integers(0, 2**32, (2, THREADS), np.uint32)
WORDS[:, :4] = [[0, 1, 2**31, 2**32 - 1], [2**32 - 1, 31, 7, 2**31]]
FLOATS = RNG.normal(size=(2, THREADS)).astype(np.float32).view(np.uint32)


def run(text: str, one: Any, other: Any, threads: int = THREADS) -> Any:
    (found,) = parse(text)
    memory = Memory()
    places = [memory.allocate(4 * threads, x.tobytes()) for x in (one, other, np.zeros_like(one))]
    words = [struct.pack("<Q", place) for place in places]
    interpret(found, (1, 1, 1), (threads, 1, 1), words, memory)
    return np.frombuffer(memory.read(places[2], 4 * threads), np.uint32)


def signed(x: Any) -> Any:
    return x.view(np.int32).astype(object)


def u32(x: Any) -> Any:
    return np.array([int(v) % 2**32 for v in x], np.uint32)


INTEGERS: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("add.s32 %r9, %r2, %r3;", lambda a, b: a + b),
    ("sub.s32 %r9, %r2, %r3;", lambda a, b: a - b),
    ("mul.lo.s32 %r9, %r2, %r3;", lambda a, b: a * b),
    ("mad.lo.s32 %r9, %r2, %r3, 5;", lambda a, b: a * b + np.uint32(5)),
    ("shl.b32 %r9, %r2, 5;", lambda a, b: a << np.uint32(5)),
    ("shr.u32 %r9, %r2, 40;", lambda a, b: np.zeros_like(a)),
    ("shr.s32 %r9, %r2, 40;", lambda a, b: u32(signed(a) >> 31)),
    ("shr.s32 %r9, %r2, 3;", lambda a, b: u32(signed(a) >> 3)),
    ("and.b32 %r9, %r2, %r3;", lambda a, b: a & b),
    ("not.b32 %r9, %r2;", lambda a, b: ~a),
    ("shf.l.wrap.b32 %r9, %r2, %r3, 8;", lambda a, b: b << np.uint32(8) | a >> np.uint32(24)),
    ("min.s32 %r9, %r2, %r3;", lambda a, b: np.minimum(a.view("i4"), b.view("i4")).view("u4")),
    ("bfe.u32 %r9, %r2, 4, 9;", lambda a, b: a >> np.uint32(4) & np.uint32(511)),
    ("bfe.s32 %r9, %r2, 4, 9;",
     lambda a, b: u32(((int(x) >> 4) & 511) - (512 if int(x) >> 12 & 1 else 0) for x in a)),
    ("abs.s32 %r9, %r2;", lambda a, b: u32(abs(x) for x in signed(a))),
    ("neg.s32 %r9, %r2;", lambda a, b: u32(-x for x in signed(a))),
    ("setp.lt.s32 %p1, %r2, %r3;selp.b32 %r9, 1, 0, %p1;", lambda a, b: u32(signed(a) < signed(b))),
    ("setp.lt.u32 %p1|%p2, %r2, %r3;selp.b32 %r9, 1, 0, %p2;", lambda a, b: u32(a >= b)),
    ("setp.eq.u32 %p1, %r2, 0;setp.lt.and.u32 %p2, %r2, %r3, %p1;selp.b32 %r9, 1, 0, %p2;",
     lambda a, b: u32((a == 0) & (a < b))),
    ("cvt.s64.s32 %rd10, %r2;shr.u64 %rd11, %rd10, 32;cvt.u32.u64 %r9, %rd11;",
     lambda a, b: u32(-(x < 0) for x in signed(a))),
    ("mul.wide.s32 %rd10, %r2, %r3;shr.u64 %rd11, %rd10, 32;cvt.u32.u64 %r9, %rd11;",
     lambda a, b: u32((signed(a) * signed(b)) >> 32)),
    ("mov.b32 {%rs1, %rs2}, %r2;mov.b32 %r9, {%rs2, %rs1};",
     lambda a, b: a << np.uint32(16) | a >> np.uint32(16)),
    ("shfl.sync.bfly.b32 %r9|%p1, %r2, 5, 31, -1;", lambda a, b: a[np.arange(THREADS) ^ 5]),
    ("shfl.sync.down.b32 %r9, %r2, 8, 31, -1;",
     lambda a, b: a[np.where(LANE < 24, EVERY + 8, EVERY)]),
]  # fmt: skip


@pytest.mark.parametrize(("compute", "wanted"), INTEGERS, ids=[c for c, _ in INTEGERS])
def test_integers(compute: str, wanted: Callable[[Any, Any], Any]) -> None:
    with np.errstate(all="ignore"):
        expected = np.asarray(wanted(*WORDS)).astype(np.uint32)
    assert np.array_equal(run(lanes(LOADS, compute), *WORDS), expected)


def bf16(x: Any) -> Any:
    return x.astype(ml_dtypes.bfloat16)


FLOATING: list[tuple[str, Callable[[Any, Any], Any]]] = [
    ("add.rn.f32 %r9, %r2, %r3;", lambda a, b: a + b),
    ("mul.rn.f32 %r9, %r2, 0f40000000;", lambda a, b: a * np.float32(2)),
    ("fma.rn.f32 %r9, %r2, %r3, %r2;", lambda a, b: (a.astype("f8") * b + a).astype("f4")),
    ("div.rn.f32 %r9, %r2, %r3;", lambda a, b: a / b),
    ("max.f32 %r9, %r2, %r3;", np.fmax),
    ("ex2.approx.f32 %r9, %r2;", lambda a, b: np.exp2(a.astype("f8")).astype("f4")),
    ("abs.f32 %r4, %r2;rsqrt.approx.f32 %r9, %r4;",
     lambda a, b: (1 / np.sqrt(np.abs(a.astype("f8")))).astype("f4")),
    ("cvt.rzi.s32.f32 %r4, %r2;cvt.rn.f32.s32 %r9, %r4;", lambda a, b: np.trunc(a) + np.float32(0)),
    ("cvt.rn.bf16.f32 %rs1, %r2;mov.b16 %rs2, 0;mov.b32 %r9, {%rs2, %rs1};",
     lambda a, b: bf16(a).astype("f4")),
    ("cvt.rn.bf16x2.f32 %r4, %r2, %r3;fma.rn.bf16x2 %r5, %r4, %r4, %r4;and.b32 %r9, %r5, -65536;",
     lambda a, b: bf16(bf16(a).astype("f8") ** 2 + bf16(a).astype("f8")).astype("f4")),
]  # fmt: skip


@pytest.mark.parametrize(("compute", "wanted"), FLOATING, ids=[c for c, _ in FLOATING])
def test_floating_point(compute: str, wanted: Callable[[Any, Any], Any]) -> None:
    values = [x.view(np.float32) for x in FLOATS]
    got = run(lanes(LOADS, compute), *FLOATS).view(np.float32)
    assert np.array_equal(got, np.asarray(wanted(*values)).astype(np.float32))


def test_lanes_that_part_meet_again_at_a_barrier() -> None:
    """Each block sums in shared memory; odd threads take a longer way."""
    text = kernel(
        """
	.shared .align 4 .b8 sum[4];
	ld.param.b64 %rd1, [p0];
	mov.u32 %r1, %tid.x;
	mov.u32 %r2, %ctaid.x;
	mov.b32 %r3, sum;
	and.b32 %r4, %r1, 1;
	setp.eq.u32 %p1, %r4, 0;
	@%p1 bra $EVEN;
	mov.b32 %r5, 0;
$LOOP:
	add.s32 %r5, %r5, 1;
	setp.lt.u32 %p2, %r5, %r1;
	@%p2 bra $LOOP;
$EVEN:
	setp.ne.u32 %p3, %r1, 63;
	bar.sync 0;
	@%p3 bra $WAIT;
	st.shared.b32 [%r3], 77;
$WAIT:
	bar.sync 0;
	ld.shared.b32 %r6, [sum];
	add.s32 %r7, %r6, %r2;
	mad.lo.s32 %r8, %r2, 64, %r1;
	mul.wide.u32 %rd2, %r8, 4;
	add.s64 %rd3, %rd1, %rd2;
	st.global.b32 [%rd3], %r7;""",
        (POINTER,),
    )
    (found,) = parse(text)
    memory = Memory()
    place = memory.allocate(4 * 64 * 5)
    interpret(found, (5, 1, 1), (64, 1, 1), [struct.pack("<Q", place)], memory)
    got = np.frombuffer(memory.read(place, 4 * 64 * 5), np.uint32).reshape(5, 64)
    assert np.array_equal(got, np.repeat(77 + np.arange(5)[:, None], 64, 1))


def test_a_loop_of_compare_and_swap_adds_every_lane() -> None:
    body = """
	ld.param.b64 %rd1, [p0];
	ld.global.b32 %r2, [%rd1];
$L:
	add.s32 %r3, %r2, 1;
	atom.global.cas.b32 %r4, [%rd1], %r2, %r3;
	setp.ne.b32 %p1, %r4, %r2;
	mov.b32 %r2, %r4;
	@%p1 bra $L;
	red.global.add.u32 [%rd1+4], 2;"""
    (found,) = parse(kernel(body, (POINTER,)))
    memory = Memory()
    place = memory.allocate(8)
    interpret(found, (2, 1, 1), (32, 1, 1), [struct.pack("<Q", place)], memory)
    assert struct.unpack("<II", memory.read(place, 8)) == (64, 128)


def test_tensor_cores_multiply() -> None:
    a, b = RNG.normal(size=(2, 16, 16)), RNG.normal(size=(2, 16, 8))
    c = RNG.normal(size=(2, 16, 8)).astype(np.float32)
    a, b = (x.astype(ml_dtypes.bfloat16) for x in (a, b))
    lane = np.arange(32)
    group, pair = lane // 4, 2 * (lane % 4)

    def packed(low: Any, high: Any) -> Any:
        return np.stack([low, high], -1).view(np.uint32)[..., 0].ravel()

    left = [packed(a[:, group + r, pair + k], a[:, group + r, pair + k + 1])
            for k in (0, 8) for r in (0, 8)]  # fmt: skip
    right = [packed(b[:, pair + k, group], b[:, pair + k + 1, group]) for k in (0, 8)]
    sums = [c[:, group + r, pair + n].ravel() for r in (0, 8) for n in (0, 1)]
    got = multiply("bf16", left, right, sums)
    wanted = (a.astype("f8") @ b.astype("f8") + c).astype(np.float32)
    for k, part in enumerate(got):
        assert np.array_equal(part.reshape(2, 32), wanted[:, group + 8 * (k // 2), pair + k % 2])


def test_matrices_are_loaded_by_rows_or_columns() -> None:
    rows = np.arange(2 * 8 * 8, dtype=np.uint16).reshape(1, 2, 8, 8)
    plain = load_matrices(rows.view(np.uint8), transposed=False)
    turned = load_matrices(rows.swapaxes(2, 3).copy().view(np.uint8), transposed=True)
    assert len(plain) == 2
    assert all(np.array_equal(p, t) for p, t in zip(plain, turned, strict=True))
    assert plain[1][5] == int(rows[0, 1, 1, 2]) | int(rows[0, 1, 1, 3]) << 16


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("mov.b32 %r1, nowhere;", "unsupported operand nowhere"),
        ("sad.u32 %r1, %r2, %r3, %r4;", "unsupported instruction"),
        ("wgmma.fence.sync.aligned;", "unsupported instruction"),
        ("mul.hi.u32 %r1, %r2, %r3;", "unsupported instruction"),
        ("shfl.sync.up.b32 %r1, %r2, 1, 0, -1;", "unsupported shuffle"),
        ("bra $NOWHERE;", "unknown label"),
        ("bar.sync 1, 32;", "some threads"),
        ("add.s32 %r1, %q2, 1;", "undeclared register"),
    ],
)
def test_what_is_outside_the_subset_is_named_with_its_line(body: str, why: str) -> None:
    (found,) = parse(kernel(f"\t{body}"), "file.ptx")
    with pytest.raises(DataError, match=why) as caught:
        interpret(found, (1, 1, 1), (32, 1, 1), [], Memory())
    assert "file.ptx" in str(caught.value)


def test_an_access_beyond_its_memory_is_a_fault() -> None:
    (found,) = parse(
        kernel("\tld.param.b64 %rd1, [p0];\n\tld.global.b32 %r1, [%rd1+8];", (POINTER,))
    )
    memory = Memory()
    place = memory.allocate(8)
    memory.allocate(64)
    with pytest.raises(DeviceFault, match="4 bytes at"):
        interpret(found, (1, 1, 1), (1, 1, 1), [struct.pack("<Q", place)], memory)
    with pytest.raises(DataError, match="parameters"):
        interpret(found, (1, 1, 1), (1, 1, 1), [], memory)
