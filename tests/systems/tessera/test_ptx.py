"""PTX taken apart, traced to parameters, and made to record what it touches."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from c2c.errors import DataError
from c2c.systems.program import Launch
from c2c.systems.program.xla import TARGETS
from c2c.systems.tessera.ptx import Reached, inject, intervals_of, new_records, parse, reach
from tests.systems.tessera.interpreter.interpret import interpret
from tests.systems.tessera.interpreter.memory import Memory
from tests.systems.tessera.ptx_text import HEAD, POINTER, kernel, lanes
from tests.systems.tessera.step import executed, step

ASSEMBLER = Path(__file__).parents[3] / ".venv-aot" / "nvidia" / "cu13" / "bin" / "ptxas"


def test_a_kernel_is_taken_apart() -> None:
    text = kernel(
        """
	.shared .align 4 .b8 tile[4][16];
	mov.b32 %r1, 7; // a comment; with a semicolon
$L__BB0_1:
	@!%p1 ld.global.v2.b32 {%r2, %r3}, [%rd1+-8];
	// begin inline asm
	{ .reg .b32 t; cp.async.cg.shared.global [ %r4 + 0 ], [ %rd2 + 0x10 ], 0x10, %r5; }
	// end inline asm
	@%p1 bra $L__BB0_1;""",
        (POINTER, ".align 64 .b8"),
        outside=".extern .shared .align 16 .b8 dynamic[];",
    ).replace("p1\n)", "p1[384]\n)")
    (found,) = parse(text, "file.ptx")
    assert [str(i) for i in found.body] == [
        "mov.b32 %r1, 7", "ld.global.v2.b32 {%r2, %r3}, [%rd1-8]",
        "cp.async.cg.shared.global [%r4], [%rd2+16], 0x10, %r5", "bra $L__BB0_1", "ret ",
    ]  # fmt: skip
    assert found.labels == {"$L__BB0_1": 1}
    assert [(i.predicate, i.is_negated) for i in found.body[1:4:2]] == [
        ("%p1", True),
        ("%p1", False),
    ]
    lines = text.splitlines()
    for instruction in found.body:
        assert instruction.name in lines[instruction.line - 1]
        assert text[instruction.position :].startswith((instruction.name, "@"))
    assert [(p.nbytes, p.align, p.is_pointer) for p in found.parameters] == [
        (8, 8, True),
        (384, 64, False),
    ]
    assert {v.name: v.nbytes for v in found.variables.values()} == {"tile": 64, "dynamic": 0}
    assert found.register_type("%rd12") == "b64"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nothing", "is no PTX"),
        (HEAD.replace("9.0", "10.0"), "PTX 10.0"),
        (kernel("\tld.global.b32 %r1, [what is this];"), "file.ptx:13, kernel k: invalid address"),
        (kernel("\t!!!;"), "file.ptx:13, kernel k: invalid instruction"),
        (kernel("\t.strange thing;"), "file.ptx:13, kernel k: unknown directive"),
        (kernel("\tret;")[:-5], "ends inside a kernel"),
    ],
)
def test_text_that_is_no_ptx_is_refused(text: str, why: str) -> None:
    with pytest.raises(DataError, match=re.escape(why)):
        parse(text, "file.ptx")


def reached(body: str, *parameters: str, outside: str = ""):
    (found,) = parse(kernel(body, parameters, outside=outside), "k.ptx")
    return reach(found)


def test_a_pointer_is_followed_through_arithmetic() -> None:
    found = reached(
        """
	ld.param.b64 %rd1, [p0];
	ld.param.b64 %rd2, [p1];
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd3, %r1, 4;
	add.s64 %rd4, %rd1, %rd3;
	ld.global.b32 %r2, [%rd4];
	mul.wide.s32 %rd5, %r2, 4;
	add.s64 %rd6, %rd2, %rd5;
	ld.global.nc.b64 %rd7, [%rd6];
	st.global.b64 [%rd4+8], %rd7;
	red.global.add.u32 [%rd6], %r2;""",
        POINTER, POINTER,
    )  # fmt: skip
    assert not found.opaque
    assert [(a.mode, a.nbytes, {r.parameter for r in a.reached}) for a in found.accesses] == [
        ("r", 4, {0}), ("r", 8, {1}), ("w", 8, {0}), ("rw", 4, {1}),
    ]  # fmt: skip
    assert found.reads == {Reached(0), Reached(1)}
    assert found.writes == {Reached(0), Reached(1)}


def test_what_is_discarded_is_as_if_written() -> None:
    body = (
        "ld.param.b64 %rd1, [p0];ld.param.b64 %rd2, [p1];discard.global.L2 [%rd1+256], 128;"
        "applypriority.global.L2::evict_normal [%rd2], 128;"
    )
    found = reached(body, POINTER, POINTER)
    assert [(a.mode, a.nbytes) for a in found.accesses] == [("w", 128)]
    assert (found.reads, found.writes) == (frozenset(), {Reached(0)})
    made = inject(kernel(body, (POINTER, POINTER)))
    assert len(made.records["k"]) == 1
    assert made.text.index("atom.global.max") < made.text.index("discard")
    assert reached("ld.b64 %rd1, [%rd2];discard.L2 [%rd1], 128;").opaque


@pytest.mark.parametrize(
    ("body", "pointers", "reads", "writes"),
    [
        (  # one of two counts as both
            "ld.param.b64 %rd1, [p0];ld.param.b64 %rd2, [p1];selp.b64 %rd3, %rd1, %rd2, %p1;"
            "st.global.b32 [%rd3], 1;", 2, set(), {0, 1},
        ),
        (  # moved by a loop
            "ld.param.b64 %rd1, [p0];mov.b64 %rd2, %rd3;add.s64 %rd2, %rd1, 8;mov.b64 %rd3, %rd2;"
            "add.s64 %rd3, %rd3, 16;\n$L:\nld.global.b8 %rs1, [%rd3];@%p1 bra $L;", 1, {0}, set(),
        ),
        (  # through shared memory, which is no access
            "ld.param.b64 %rd1, [p0];mov.b32 %r1, slot;st.shared.b64 [%r1], %rd1;"
            "ld.shared.b64 %rd2, [%r1];st.global.b32 [%rd2], 1;", 1, set(), {0},
        ),
    ],
)  # fmt: skip
def test_a_pointer_is_followed(body: str, pointers: int, reads: set[int], writes: set[int]) -> None:
    found = reached(body, *[POINTER] * pointers, outside=".shared .align 8 .b8 slot[8];")
    assert found.reads == {*map(Reached, reads)}
    assert found.writes == {*map(Reached, writes)}
    assert len(found.accesses) == 1


def test_words_and_descriptors_of_a_struct_have_offsets() -> None:
    text = kernel(
        """
	ld.param.v2.b64 {%rd1, %rd2}, [p0+128];
	mov.b64 %rd3, p0;
	add.s64 %rd4, %rd3, 64;
	cvta.param.u64 %rd5, %rd4;
	st.global.b32 [%rd2], 0;
	cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
		[%r1], [%rd5, {%r2, %r3}], [%r4];
	cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group [%rd3, {%r2, 0}], [%r1];
	cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1], %r9, [%r4];
	mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 8;""",
        (".align 64 .b8",),
    ).replace("p0\n)", "p0[384]\n)")
    (parsed,) = parse(text)
    found = reach(parsed)
    assert not found.opaque
    assert found.reads == {Reached(0, 64, True), Reached(0, 0, True), Reached(0, 128)}
    assert found.writes == {Reached(0, 136), Reached(0, 0, True)}


@pytest.mark.parametrize(
    ("body", "outside", "why"),
    [
        ("ld.param.b64 %rd1, [p0];ld.global.b64 %rd2, [%rd1];ld.global.b32 %r1, [%rd2];", "",
         "comes from no parameter"),
        ("mov.b64 %rd1, table;ld.global.b32 %r1, [%rd1];", ".global .align 4 .b8 table[4];",
         "variable in global memory"),
        ("call.uni (%r1), malloc, (%rd1);", "", "call"),
        ("multimem.red.global.add.f32 [%rd1], %r1;", "", "unknown memory accesses"),
        ("newop.global.b32 %r1, [%rd1];", "", "unknown memory access"),
    ],
)  # fmt: skip
def test_what_cannot_be_traced_makes_a_kernel_opaque(body: str, outside: str, why: str) -> None:
    found = reached(body, POINTER, outside=outside)
    assert found.opaque
    assert why in found.opaque[0]
    assert found.opaque[0].startswith("k.ptx:")
    with pytest.raises(DataError, match="cannot be instrumented"):
        inject(kernel(body, (POINTER,), outside=outside))


def test_every_access_of_a_step_is_resolved() -> None:
    known = step().kernels
    assert not [name for name, each in known.items() if each.opaque]
    for each in known.values():
        accesses = [
            line for line in each.kernel.body
            if ".global" in line.opcode and line.name in ("ld", "st", "atom", "red", "cp")
        ]  # fmt: skip
        assert len(accesses) == len(each.accesses)
        assert all(len(a.reached) == 1 for a in each.accesses)


def test_a_step_touches_its_slices_and_nothing_else() -> None:
    whole = 0
    for touched in executed()[1]:
        for (part, is_write), interval in touched.items():
            assert 0 <= interval.begin < interval.end <= part.nbytes
            whole += is_write and interval.end - interval.begin == part.nbytes
    results = [part for touch in step().touches for part in touch.writes]
    in_place = [p for t in step().touches for p in t.writes if p in t.reads]
    assert len(results) - len(in_place) <= whole + sum(
        name.startswith("copy") for name in (n.rpartition("/")[2] for n in step().xla.names)
    )


def test_injected_code_computes_the_same_and_records_what_it_touches() -> None:
    """All kernels of the step that are no GEMMs, first launch of each."""
    program = step().xla.program
    placed, seen = step().placed(1), set()
    for launch in program.launches:
        name = program.kernels[launch.kernel].entry if isinstance(launch, Launch) else ""
        if not isinstance(launch, Launch) or name in seen or name.startswith("gemm"):
            continue
        seen.add(name)
        image = program.kernels[launch.kernel].image.decode()
        injected = inject(image, name)
        (recording,) = parse(injected.text, name)
        records = injected.records[name]
        memory = placed._memories[0]
        buffer = memory.allocate(16 * len(records), new_records(records))
        before = [memory.read(b, program.buffers[k].nbytes) for k, b in enumerate(placed._bases[0])]
        intervals = interpret(
            recording, launch.grid, launch.block,
            [*placed.arguments(launch), struct.pack("<Q", buffer)], memory,
            shared_bytes=launch.shared_bytes,
        )  # fmt: skip
        after = [memory.read(b, program.buffers[k].nbytes) for k, b in enumerate(placed._bases[0])]
        for k, content in enumerate(before):
            memory.write(placed._bases[0][k], content)
        said = intervals_of(records, memory.read(buffer, 16 * len(records)))
        original = interpret(
            step().kernels[name].kernel, launch.grid, launch.block, placed.arguments(launch),
            memory, shared_bytes=launch.shared_bytes,
        )  # fmt: skip
        assert [
            memory.read(b, len(x)) for b, x in zip(placed._bases[0], after, strict=True)
        ] == after
        assert intervals
        for record in records:
            touched = original[record.index]
            assert (record in said) == (touched.end > 0)
            if record in said:
                assert (said[record].begin, said[record].end) == (touched.begin, touched.end)
    assert len(seen) > 15


def test_predicates_widths_and_coordinates_are_recorded() -> None:
    text = lanes(
        "setp.lt.u32 %p1, %r1, 5;\n\t@%p1 ld.global.v4.b32 {%r2, %r3, %r4, %r5}, [%rd7+16];",
        "", "@!%p1 st.b32 [%rd9], %r1;",
    )  # fmt: skip
    text = text.replace("[%rd7+16]", "[%rd1+16]")
    (recording,) = parse(inject(text).text)
    records = inject(text).records["k"]
    memory = Memory()
    one, other, out = (memory.allocate(4 * 32) for _ in range(3))
    buffer = memory.allocate(16 * len(records), new_records(records))
    words = [struct.pack("<Q", a) for a in (one, other, out, buffer)]
    interpret(recording, (1, 1, 1), (32, 1, 1), words, memory)
    said = list(intervals_of(records, memory.read(buffer, 16 * len(records))).values())
    assert (said[0].begin, said[0].end) == (one + 16, one + 32)
    assert (said[1].begin, said[1].end) == (out + 20, out + 128)
    copy = kernel(
        "mov.b64 %rd3, p0;\n\t@%p2 cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier"
        "::complete_tx::bytes [%r1], [%rd3, {%r2, 0}], [%r4];",
        (".align 64 .b8",),
    ).replace("p0\n)", "p0[128]\n)")
    made = inject(copy)
    assert [r.dimension for r in made.records["k"]] == [0, 1]
    assert made.text.count("@%p2 atom.global.min.s64") == 2


def merged(texts: list[str]) -> str:
    """Return one module of several, which assembles in a fraction of their time."""
    outside = {line for text in texts for line in re.findall(r"^\.extern .*;$", text, re.MULTILINE)}
    bodies = [
        re.sub(r"^\.(version|target|address_size|extern) .*$", "", text, flags=re.MULTILINE)
        for text in texts
    ]
    return "\n".join([HEAD, *sorted(outside), *bodies])


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_code_for_the_oldest_gpu_assembles_for_all(target: str, tmp_path: Path) -> None:
    assembler = str(ASSEMBLER) if ASSEMBLER.exists() else shutil.which("ptxas")
    if assembler is None:
        pytest.skip("ptxas is missing: make aot")
    texts = [kernel.image.decode() for kernel in step().xla.program.kernels]
    source = tmp_path / "all.ptx"
    source.write_text(merged([inject(text).text for text in texts]), "utf-8")
    line = [assembler, f"-arch={TARGETS[target].architecture}", "-O0", "-o",
            str(tmp_path / "all.cubin"), str(source)]  # fmt: skip
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
