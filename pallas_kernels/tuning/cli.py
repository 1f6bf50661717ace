"""`tune` on the command line: which shapes, how many candidates, where to."""

from __future__ import annotations

import argparse
import sys

from pallas_kernels.capability import BACKENDS, device, missing
from pallas_kernels.gemm import MODEL_PROJECTIONS, ROWS, W_LAYOUTS, machine_for, present_machine
from pallas_kernels.hopper import INPUT_DTYPES
from pallas_kernels.tuned_results import FOLDER_VARIABLE
from pallas_kernels.tuning.candidates import candidates, problems
from pallas_kernels.tuning.tuner import DeviceLostError, tune

UNAVAILABLE = 2
"""Exit status where something is missing or an argument is wrong."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `tune`."""
    parser.add_argument(
        "--model",
        action="append",
        choices=sorted(MODEL_PROJECTIONS),
        help="tune for this model's projections; may be repeated; default all",
    )
    parser.add_argument(
        "--shape",
        action="append",
        type=_shape,
        default=[],
        metavar="KxN",
        help="tune for weights of this size; may be repeated",
    )
    parser.add_argument(
        "--rows",
        type=_numbers,
        default=ROWS,
        metavar="M,M,...",
        help=f"numbers of tokens; default {','.join(map(str, ROWS))}",
    )
    parser.add_argument("--dtype", choices=INPUT_DTYPES, default="bfloat16")
    parser.add_argument("--out-dtype", help="of the output; default --dtype, or float32")
    parser.add_argument("--w-layout", choices=W_LAYOUTS, default="kn")
    parser.add_argument("--cluster", type=_numbers, help="only these cluster sizes, e.g. 1,2")
    parser.add_argument("--top", type=int, default=8, help="candidates a problem; default 8")
    parser.add_argument("--repeats", type=int, default=7, help="rounds of timing; default 7")
    parser.add_argument("--limit-s", type=float, help="begin no problem after so many seconds")
    parser.add_argument(
        "--folder", help=f"where the results go; default {FOLDER_VARIABLE}, else the package"
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="sm90",
        help="sm90 measures; the others only try the tuner itself, under the device name 'cpu'",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="list the candidates and predicted times only"
    )


def run(args: argparse.Namespace) -> int:
    """Tune, or list what would be tuned; return the exit status."""
    try:
        wanted = problems(
            args.model,
            args.rows,
            shapes=args.shape,
            dtype=args.dtype,
            out_dtype=args.out_dtype,
            w_layout=args.w_layout,
        )
        if args.dry_run:
            machine = present_machine(measured=False)
            print(f"{machine.device}, {machine.sm_count} SMs; {machine.source}")
            for gemm in wanted:
                print(f"M {gemm.m} K {gemm.k} N {gemm.n} {gemm.dtype} -> {gemm.out_dtype}")
                for one in candidates(gemm, machine, top=args.top, clusters=args.cluster):
                    c = one.config
                    print(
                        f"  {c.tm}x{c.tn} kc {c.kc} cluster {c.cluster} stagger {c.stagger} "
                        f"alpha {one.alpha:.3g}: {one.predicted_s * 1e6:.1f} us, {one.bound}"
                    )
            return 0
        if reason := missing(args.backend, device()):
            print(f"tune: nothing can be measured here: {reason}", file=sys.stderr)
            return UNAVAILABLE
        # Results must not change what is tried, or no second run would find the list complete.
        if args.backend == "sm90":
            machine = present_machine(measured=False)
        else:
            machine = machine_for("cpu", sm_count=4, measured=False)
        done = tune(
            wanted,
            machine=machine,
            backend=args.backend,
            folder=args.folder,
            top=args.top,
            repeats=args.repeats,
            clusters=args.cluster,
            limit_s=args.limit_s,
            say=lambda line: print(line, flush=True),
        )
    except DeviceLostError as error:
        print(f"tune: {error}. Run it again to go on with the next candidate.", file=sys.stderr)
        return 1
    except ValueError as error:
        print(f"tune: {error}", file=sys.stderr)
        return UNAVAILABLE
    print(
        f"{done.measured} measured, {done.failed} failed, {done.skipped} problems had results, "
        f"{done.left} left for another run: {done.path}"
    )
    return 0


def _shape(text: str) -> tuple[int, int]:
    k, _, n = text.lower().partition("x")
    return int(k), int(n)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
