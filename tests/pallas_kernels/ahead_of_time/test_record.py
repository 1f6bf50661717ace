"""Changes that make a recorded check stale, and changes that do not."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import shutil
from pathlib import Path
from typing import Any

import jax
import pytest

from pallas_kernels.ahead_of_time import TARGETS, Compiler, Target, record
from pallas_kernels.ahead_of_time import __main__ as command
from pallas_kernels.gather_rows import sm90
from pallas_kernels.mosaic import plgpu
from pallas_kernels.ops import OPS, programs
from pallas_kernels.program import Program


@pytest.fixture(scope="module")
def before() -> dict[str, str]:
    """The fingerprints of the sources as they are."""
    return {op: record.fingerprint(op) for op in OPS}


@pytest.fixture
def copied(tmp_path: Path, before: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's sources, to be changed; `before` is of the same."""
    there = tmp_path / "pallas_kernels"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(record.__file__).parents[1], there, ignore=ignored)
    monkeypatch.setattr(record, "_PACKAGE", there)
    return there


@pytest.mark.parametrize(
    ("file", "old", "new", "stale"),
    [
        # the missing wait, the wrong count and the swapped tile of the mutation tests
        ("mosaic.py", "plgpu.barrier_wait(barrier", "id(barrier", set(OPS)),
        ("gemm/cta.py", "turn * self.size + slot", "slot", {"gemm"}),
        (
            "gemm/rows.py",
            "sym_strip(div(item, blocks)",
            "sym_strip(rem(item, blocks)",
            {"gemm"},
        ),
        ("ahead_of_time/report.py", "spilled_bytes == 0", "spilled_bytes >= 0", set(OPS)),
        ("gemm/sm90.py", '"""The Hopper kernel:', '"""A Hopper kernel:', set()),
        ("gemm/config.py", "@dataclass", "# a comment\n@dataclass", set()),
        ("host_memory/pool.py", "import ", "import sys\nimport ", set()),
    ],
)
def test_an_op_is_stale_if_its_code_changed(
    copied: Path, before: dict[str, str], file: str, old: str, new: str, stale: set[str]
) -> None:
    text = (copied / file).read_text("utf-8")
    assert old in text
    (copied / file).write_text(text.replace(old, new, 1), "utf-8")
    assert {op for op in OPS if record.fingerprint(op) != before[op]} == stale


def test_another_jax_makes_all_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "recorded.json"
    assert record.unchecked(kept) == OPS
    record.write({op: whole(op) for op in OPS[1:]}, kept)
    assert record.unchecked(kept) == OPS[:1]
    record.write({OPS[0]: whole(OPS[0])}, kept)
    assert record.unchecked(kept) == ()
    assert record.read(kept)[OPS[0]] == whole(OPS[0])
    monkeypatch.setattr(record, "jax_version", lambda: "0.0.1")
    assert record.unchecked(kept) == OPS


def whole(op: str) -> record.Checked:
    return record.Checked(sources=record.fingerprint(op), programs=frozenset({f"all of {op}"}))


@pytest.mark.parametrize("options", [["--part", "0/2"], ["--target", "h200"]])
def test_a_part_is_not_recorded(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command.main(["--record", *options])
    assert stopped.value.code == 2
    assert "--record: expected without" in capsys.readouterr().err


H200 = TARGETS["h200"]


@pytest.fixture(scope="module")
def program() -> Program:
    return programs("gather_rows", H200.sm_count)[0]


def test_what_the_compiler_gets_does_not_hang_on_where_it_is_written(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = record.digest_of(program, H200)

    def elsewhere(*arrays: Any) -> Any:
        return program.function(*arrays)

    # jax keeps what it has traced: only a new process would see other lines of the kernel's own
    jax.clear_caches()
    moved = dataclasses.replace(program, function=elsewhere, name="renamed")
    code = compile(f"{'#' * 9}\n" * 50 + inspect.getsource(sm90), sm90.__file__, "exec")
    namespace = {"__name__": sm90.__name__}
    exec(code, namespace)
    monkeypatch.setattr(sm90, "build", namespace["build"])
    assert record.digest_of(moved, H200) == known


def test_what_the_compiler_gets_and_what_is_expected_count(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubled(*arrays: Any) -> Any:
        return 2 * program.function(*arrays)

    x, *rest = program.arguments
    known = record.digest_of(program, H200)
    others = [
        record.digest_of(other, target)
        for other, target in (
            (program, TARGETS["h200_16sm"]),
            (dataclasses.replace(program, function=doubled), H200),
            (dataclasses.replace(program, shared_bytes=program.shared_bytes - 1), H200),
            (dataclasses.replace(program, opcodes=program.opcodes | {"HGMMA"}), H200),
            (
                dataclasses.replace(program, arguments=(dataclasses.replace(x, host=False), *rest)),
                H200,
            ),
            (programs("gather_rows", H200.sm_count)[1], H200),
        )
    ]
    monkeypatch.setattr(record, "jax_version", lambda: "0.0.1")
    others.append(record.digest_of(program, H200))
    assert len({known, *others}) == 1 + len(others)


def test_one_operation_of_a_kernel_counts(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = record.digest_of(program, H200)
    waited = plgpu.wait_smem_to_gmem
    monkeypatch.setattr(plgpu, "wait_smem_to_gmem", lambda n, **more: waited(n + 1, **more))
    jax.clear_caches()
    assert record.digest_of(program, H200) != known


def test_what_is_lowered_as_recorded_is_not_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A stand-in for the compiler, which finds a fault in whatever it is given."""

    class Faulty(Compiler):
        def __init__(self, target: Target, dump: Path) -> None:
            self.target = target

        def quiet(self) -> contextlib.AbstractContextManager[None]:
            return contextlib.nullcontext()

        def check(self, program: Program) -> Any:
            raise RuntimeError("compiled")

    kept = tmp_path / "recorded.json"
    read, write = record.read, record.write
    for name, stand_in in (
        ("Compiler", Faulty),
        ("missing", str),
        ("prepare", lambda folder: None),
    ):
        monkeypatch.setattr(command, name, stand_in)
    monkeypatch.setattr(record, "read", lambda path=kept: read(path))
    monkeypatch.setattr(record, "write", lambda checked: write(checked, kept))
    monkeypatch.setattr(record, "TARGETS", ("h200",))
    monkeypatch.setattr(command, "programs", lambda op, sms: programs(op, sms)[:3])
    first, *_ = found = programs("gather_rows", H200.sm_count)[:3]
    write(
        {"gather_rows": record.Checked(programs=frozenset({record.digest_of(first, H200)}))}, kept
    )

    assert command.main(["--record", "--op", "gather_rows"]) == command.FAULTS
    lines = capsys.readouterr().out.splitlines()
    assert ["as recorded" in line for line in lines] == [True, False, False]
    assert record.unchecked(kept) == OPS  # faults leave nothing recorded
    # now all three are known, by another check
    write(
        {
            "gather_rows": record.Checked(
                programs=frozenset(record.digest_of(p, H200) for p in found)
            )
        },
        kept,
    )
    assert command.main(["--record", "--op", "gather_rows"]) == 0
    assert "gather_rows" not in record.unchecked(kept)
    assert len(read(kept)["gather_rows"].programs) == 3
