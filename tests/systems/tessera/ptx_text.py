"""PTX of small kernels, as LLVM lays it out."""

from __future__ import annotations

HEAD = ".version 9.0\n.target sm_80\n.address_size 64\n"


def kernel(body: str, parameters: tuple[str, ...] = (), *, outside: str = "") -> str:
    """Return a module of one kernel called k; pointers are parameters p0, p1, ..."""
    declared = ",\n".join(f"\t.param {p} p{n}" for n, p in enumerate(parameters))
    registers = (
        "\t.reg .pred %p<9>;\n\t.reg .b16 %rs<40>;\n\t.reg .b32 %r<40>;\n\t.reg .b64 %rd<40>;\n"
    )
    return (
        f"{HEAD}{outside}\n.visible .entry k(\n{declared}\n)\n{{\n{registers}{body}\n\tret;\n}}\n"
    )


POINTER = ".u64 .ptr .align 16"


def lanes(loads: str, compute: str, store: str = "st.global.b32 [%rd9], %r9;") -> str:
    """Return a kernel that computes on what each thread loads from p0 and p1, into p2."""
    return kernel(
        f"""
	ld.param::entry.b64 %rd1, [p0];
	ld.param::entry.b64 %rd2, [p1];
	ld.param::entry.b64 %rd3, [p2];
	cvta.to.global.u64 %rd4, %rd3;
	mov.u32 %r1, %tid.x;
	mul.wide.u32 %rd5, %r1, 4;
	add.s64 %rd7, %rd1, %rd5;
	add.s64 %rd8, %rd2, %rd5;
	add.s64 %rd9, %rd4, %rd5;
	{loads}
	{compute}
	{store}""",
        (POINTER, POINTER, POINTER),
    )
