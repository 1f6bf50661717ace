"""A launch program from XLA's own files: complete, without guesses, the same each time."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from c2c.errors import DataError, SettingError
from c2c.hardware import load_platform
from c2c.systems.program import Launch, entries_of
from c2c.systems.program.xla import TARGETS, StepShape, read_dump
from tests.compiler import needs_compiler, run
from tests.systems.program.xla import make
from tests.systems.program.xla.make import DECODE, SHAPE


@pytest.mark.slow
def test_the_fixture_is_what_the_compiler_writes_today(tmp_path: Path) -> None:
    needed = needs_compiler.args[0]
    if needed:
        pytest.skip(needs_compiler.kwargs["reason"])
    run("tests.systems.program.xla.make", str(tmp_path / "new"))
    wanted, made = (
        {p.name: p.read_text("utf-8") for p in folder.iterdir()}
        for folder in (DECODE, tmp_path / "new")
    )
    other = sorted(n for n in wanted.keys() | made.keys() if wanted.get(n) != made.get(n))
    assert not other, f"the model or jax has changed: {make.__doc__}"


def test_a_step_is_read_whole() -> None:
    step = read_dump(DECODE)
    program = step.program
    assert len(program.launches) == len(step.names) == len(step.operands) == len(step.results)
    assert {k.entry for k in program.kernels} == {p.stem for p in DECODE.glob("*.ptx")} - {
        p.stem for p in DECODE.glob("*.ptx") if b".entry" not in p.read_bytes()
    }
    for launch in program.launches:
        if isinstance(launch, Launch):
            kernel = program.kernels[launch.kernel]
            (entry,) = [e for e in entries_of(kernel.image) if e.name == kernel.entry]
            assert len(entry.parameters) == len(launch.arguments)
            assert all(parameter.is_pointer for parameter in entry.parameters)
    # embedding, three norms, four projections a layer, head; tokens, positions, k, v, tables
    assert len(program.inputs) == 1 + 3 + 4 * SHAPE.layers + 1 + 5
    cache = SHAPE.layers * SHAPE.rows * SHAPE.context * SHAPE.kv_heads * SHAPE.head_dim * 2
    assert [part.nbytes for part in step.carried] == [cache, cache]
    constants = [b.content for b in program.buffers if b.content]
    assert constants  # of the rotation
    assert all(len(b.content) in (0, b.nbytes) for b in program.buffers)


def test_a_loop_is_unrolled() -> None:
    steps = [read_dump(DECODE, trips=trips) for trips in range(4)]
    lengths = [len(step.program.launches) for step in steps]
    assert len({after - before for before, after in itertools.pairwise(lengths)}) == 1
    assert lengths[1] > lengths[0]
    again = [name for name in steps[3].names if "[2]/" in name]
    assert len(again) == lengths[3] - lengths[2]
    with pytest.raises(SettingError, match="trips=-1"):
        read_dump(DECODE, trips=-1)


@pytest.mark.parametrize(
    ("file", "old", "new", "why"),
    [
        ("thunks.txt", "loop_gather_fusion", "loop_scatter_fusion", "is launched"),
        ("thunks.txt", "001:", "what", "not a thunk"),
        ("thunks.txt", "kCopy", "kSend", "not a known launch"),
        ("hlo.txt", "is_scheduled=true", "is_scheduled=false", "not a scheduled HLO"),
        ("hlo.txt", "ENTRY ", "", "no ENTRY"),
        ("assignment.txt", "loop_gather_fusion", "loop_gather", "no memory is assigned"),
        ("assignment.txt", "allocation ", "page ", "no allocations"),
        ("loop_gather_fusion.ptx", "loop_gather_fusion", "other", "no PTX of kernel"),
        ("loop_gather_fusion.ptx", ".param .u64 .ptr .align 16 loop_gather_fusion_param_1,", "",
         "parameters"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, file: str, old: str, new: str, why: str
) -> None:
    shutil.copytree(DECODE, tmp_path / "d")
    path = tmp_path / "d" / file
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    with pytest.raises(DataError, match=why):
        read_dump(tmp_path / "d")


@pytest.mark.parametrize("file", ["thunks.txt", "hlo.txt", "assignment.txt"])
def test_a_missing_file_is_named(tmp_path: Path, file: str) -> None:
    shutil.copytree(DECODE, tmp_path / "d")
    (tmp_path / "d" / file).unlink()
    with pytest.raises(DataError, match=f"{file}: is missing"):
        read_dump(tmp_path / "d")


def test_shapes_that_cannot_be_are_refused() -> None:
    with pytest.raises(SettingError, match="target='v100'"):
        StepShape(target="v100")
    with pytest.raises(SettingError, match="context=100"):
        StepShape(context=100)
    with pytest.raises(SettingError, match="layers=0"):
        StepShape(layers=0)


@pytest.mark.parametrize("name", TARGETS)
def test_targets_are_the_platforms(name: str) -> None:
    gpu, text = load_platform(name).gpu, TARGETS[name].description()
    assert f"core_count: {gpu.sm_count} " in text
    assert f"l2_cache_size: {gpu.l2_bytes}\n" in text
    # what one block may have is less than an SM's shared memory by what the system keeps
    assert f"shared_memory_per_block_optin: {gpu.smem_per_sm_bytes - 1024}\n" in text
