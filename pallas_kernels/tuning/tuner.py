"""Measure the candidates of each problem, check them, and keep the results after every step."""

from __future__ import annotations

import datetime as dt
import importlib.metadata
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pallas_kernels import tuned_results
from pallas_kernels.capability import Backend, require
from pallas_kernels.gemm import Gemm, Machine, launch_traffic, plans
from pallas_kernels.gemm.heuristics import KERNEL_SOURCES, OP, config_of, tuning_key
from pallas_kernels.tuned_results import Entry, Measurement, Tuned
from pallas_kernels.tuning.candidates import Candidate, candidates
from pallas_kernels.tuning.launching import Launch, Operands, launcher, operands, wrong
from pallas_kernels.tuning.timing import Timing, describe, interleaved

UNFINISHED = "did not finish: the process ended while it ran"
_TRIES = 2  # a process also ends for other reasons, such as a time limit

_DRIVER = Path("/proc/driver/nvidia/version")


class DeviceLostError(RuntimeError):
    """The device no longer computes; a new process must go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Summary of a run of the tuner."""

    path: Path
    measured: int  # candidates
    failed: int
    skipped: int  # problems that had all results already
    left: int  # problems not reached within the time limit


def tune(
    problems: Sequence[Gemm],
    *,
    machine: Machine,
    backend: Backend = "sm90",
    folder: str | Path | None = None,
    top: int = 8,
    repeats: int = 7,
    clusters: Sequence[int] | None = None,
    limit_s: float | None = None,
    seed: int = 0,
    say: Callable[[str], object] = print,
    clock: Callable[[], float] = time.perf_counter,
) -> Summary:
    """Measure candidates for each problem and file them under the device's name.

    Each candidate is compiled and its result compared with float64 (a sample of the elements)
    before it is timed. One that fails is recorded with its reason and not tried again; nor is one
    during which the process ended twice. The file is replaced in one step after every candidate,
    and a further call goes on where the last one ended. Results of another version of the kernel or
    of jax are measured anew.

    Args:
      problems: what to tune for, without layers.
      machine: the device, whose model prunes the candidates.
      backend: "sm90"; others run the same code on a CPU, for tests.
      folder: where the file goes; default `tuned_results.writable_folder()`.
      top: candidates of a problem.
      repeats: rounds of timing.
      clusters: only these cluster sizes.
      limit_s: no further problem is begun after so many seconds.
      seed: of the inputs and of the order of timing.
      say: takes a line of progress.
      clock: seconds; tests put their own here.

    Raises:
      KernelUnavailable: the default device cannot run `backend`.
      ValueError: an argument is outside its range, or the present file cannot be read.
      DeviceLostError: the device fails even without the kernel; a new process may go on.
    """
    require(backend)
    path = tuned_results.writable_folder(folder) / tuned_results.file_name(machine.device)
    session = _Session(path, machine, backend, _read(path, machine.device))
    begin, measured, failed, skipped, left = clock(), 0, 0, 0, 0
    for gemm in problems:
        wanted = candidates(gemm, machine, top=top, clusters=clusters)
        missing = session.missing(gemm, wanted)
        if not missing:
            skipped += 1
            continue
        if limit_s is not None and clock() - begin >= limit_s:
            left += 1
            continue
        l2_bytes = machine.l2_bytes if backend == "sm90" else 0.0
        inputs = operands(gemm, l2_bytes=l2_bytes, backend=backend, seed=seed)
        launches = {}
        for one in missing:
            if (launch := _checked(session, inputs, one)) is not None:
                launches[one] = launch
        times = interleaved(launches, repeats=repeats, seed=seed, clock=clock) if launches else {}
        for one, timing in times.items():
            session.record(gemm, _measurement(one, timing))
        if any(timing.error for timing in times.values()):
            _still_there()
        measured += len(times)
        results = session.results(gemm)
        bad = sum(result.time_s is None for result in results)
        failed += bad
        say(_line(gemm, results, bad))
    session.measure_machine()
    return Summary(path=path, measured=measured, failed=failed, skipped=skipped, left=left)


class _Session:
    """The file of results during a run; every change reaches the disk at once."""

    def __init__(self, path: Path, machine: Machine, backend: Backend, tuned: Tuned) -> None:
        self.path, self.machine, self.backend, self.tuned = path, machine, backend, tuned
        self.source = tuned_results.source_hash(KERNEL_SOURCES)

    def missing(self, gemm: Gemm, wanted: Sequence[Candidate]) -> list[Candidate]:
        done = {
            _name(result.config, result.alpha)
            for result in self.results(gemm)
            if result.error != UNFINISHED or result.repeats >= _TRIES
        }
        return [one for one in wanted if _name(asdict(one.config), one.alpha) not in done]

    def tries(self, gemm: Gemm, one: Candidate) -> int:
        """Return the number of processes that have ended while they ran the candidate."""
        name = _name(asdict(one.config), one.alpha)
        found = [r for r in self.results(gemm) if _name(r.config, r.alpha) == name]
        return found[0].repeats if found and found[0].error == UNFINISHED else 0

    def results(self, gemm: Gemm) -> tuple[Measurement, ...]:
        entry = self._entry(gemm)
        return entry.measurements if entry else ()

    def record(self, gemm: Gemm, *results: Measurement, forget: Candidate | None = None) -> None:
        """Add results, in place of earlier ones of the same candidates."""
        new = {_name(result.config, result.alpha): result for result in results}
        gone = {_name(asdict(forget.config), forget.alpha)} if forget else set()
        kept = tuple(
            result
            for result in self.results(gemm)
            if _name(result.config, result.alpha) not in new.keys() | gone
        )
        key = tuning_key(gemm, self.machine.sm_count)
        entry = Entry(
            op=OP,
            key=key,
            source=self.source,
            provenance=_provenance(self.backend),
            measurements=(*kept, *results),
        )
        others = tuple(e for e in self.tuned.entries if e.op != OP or dict(e.key) != key)
        self._write(replace(self.tuned, entries=(*others, entry)))

    def measure_machine(self) -> None:
        """Keep the best rate of the link that a launch bound by it reached."""
        rates = []
        for entry in self.tuned.entries:
            if entry.op != OP or not entry.fresh(self.source) or self.backend != "sm90":
                continue
            size = {name: entry.key[name] for name in entry.key if name != "sm_count"}
            gemm: Gemm = Gemm(**size)  # type: ignore[arg-type]
            for result in entry.measurements:
                config = config_of(result.config)
                if result.time_s is not None:
                    moved = launch_traffic(gemm, config, plans(gemm, config, result.alpha))
                    rates.append(float(moved.link_bytes) / result.time_s / 1e9)
        if rates:
            date = _provenance(self.backend)["date"]
            found = {"link_gbps": max(rates), "source": f"best launch of the tuner, {date}"}
            self._write(replace(self.tuned, machine={**self.tuned.machine, **found}))

    def _entry(self, gemm: Gemm) -> Entry | None:
        key = tuning_key(gemm, self.machine.sm_count)
        return next(
            (
                entry
                for entry in self.tuned.entries
                if entry.op == OP and dict(entry.key) == key and entry.fresh(self.source)
            ),
            None,
        )

    def _write(self, tuned: Tuned) -> None:
        self.tuned = tuned
        tuned_results.write(self.path, tuned)


def _checked(session: _Session, inputs: Operands, one: Candidate) -> Launch | None:
    """Return the compiled launch of a candidate whose result is right; else record why not."""
    gemm = replace(inputs.gemm, layers=None)
    layer = (inputs.gemm.layers or 1) - 1
    # If the process dies in between, the next one finds this and does not try again.
    tries = session.tries(gemm, one) + 1
    session.record(gemm, _measurement(one, Timing(median_s=None, error=UNFINISHED, repeats=tries)))
    try:
        launch = launcher(inputs, one.config)(one.alpha)
        reason = wrong(inputs, launch(layer), layer)
    except Exception as error:  # noqa: BLE001 - recorded; the next candidate may work
        reason = describe(error)
        session.record(gemm, _measurement(one, Timing(median_s=None, error=reason)))
        _still_there()
        return None
    except BaseException:  # interrupted, which says nothing about the candidate
        session.record(gemm, forget=one)
        raise
    if reason:
        session.record(gemm, _measurement(one, Timing(median_s=None, error=f"wrong: {reason}")))
        return None
    session.record(gemm, forget=one)
    return launch


def _still_there() -> None:
    """Return if the device computes.

    Raises:
      DeviceLostError: it does not; CUDA reports nothing but errors after some faults.
    """
    import jax.numpy as jnp

    try:
        alive = float(jnp.arange(3.0).sum()) == 3.0
    except Exception as error:
        raise DeviceLostError(f"the device fails after a candidate: {describe(error)}") from error
    if not alive:
        raise DeviceLostError("the device computes wrong sums after a candidate")


def _measurement(one: Candidate, timing: Timing) -> Measurement:
    return Measurement(
        config=asdict(one.config),
        alpha=one.alpha,
        time_s=timing.median_s,
        spread=timing.spread,
        repeats=timing.repeats,
        error=timing.error,
    )


def _name(config: Any, alpha: float) -> tuple[tuple[tuple[str, int | bool], ...], float]:
    return tuple(sorted(dict(config).items())), round(alpha, 9)


def _read(path: Path, device: str) -> Tuned:
    if not path.exists():
        return Tuned(device=device)
    try:
        return tuned_results.read(path)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"folder={str(path.parent)!r}: its {path.name} cannot be read ({error}). "
            f"Move that file away."
        ) from error


def _provenance(backend: Backend) -> dict[str, str]:
    import jax

    driver = _DRIVER.read_text().splitlines()[0] if _DRIVER.exists() else "none"
    return {
        "backend": backend,
        "device": jax.devices()[0].device_kind,
        "platform": str(getattr(jax.devices()[0].client, "platform_version", "?")).split("\n")[0],
        "driver": driver,
        "jax": tuned_results.jax_version(),
        "jaxlib": importlib.metadata.version("jaxlib"),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }


def _line(gemm: Gemm, results: Sequence[Measurement], bad: int) -> str:
    timed = [result for result in results if result.time_s is not None]
    head = f"M {gemm.m} K {gemm.k} N {gemm.n} {gemm.dtype}:"
    tail = f", {bad} failed" if bad else ""
    if not timed:
        return f"{head} nothing worked{tail}"
    best = min(timed, key=lambda result: result.time_s or 0.0)
    c = best.config
    return (
        f"{head} {(best.time_s or 0) * 1e6:.1f} us (spread {best.spread:.1%}) by "
        f"{c['tm']}x{c['tn']} cluster {c['cluster']} alpha {best.alpha:.3g}, best of "
        f"{len(timed)}{tail}"
    )
