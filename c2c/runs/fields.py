"""Flat names of nested results and settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["settings_by_path", "summary_fields"]

type Value = float | None

# Parts of a summary by model or by reason of a failure, and the verdict, which holds texts.
_APART = ("models", "failures", "verdict")


def summary_fields(summary: Mapping[str, Any]) -> dict[str, Value]:
    """Return a summary's numbers, without single models', by their path joined by `_`, unit last.

    >>> summary_fields({"ttft_s": {"p99": 0.5}, "failed": 0, "run": {"link_gbps": 375.0}})
    {'ttft_p99_s': 0.5, 'failed': 0, 'run_link_gbps': 375.0}
    """
    fields = {k: v for k, v in summary.items() if k not in _APART}
    return {_name(path): value for path, value in _numbers(fields, ())}


def settings_by_path(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their names on the command line.

    >>> settings_by_path({"seed": 0, "workload": {"rate_rps": 2.0}})
    {'seed': 0, 'workload.rate_rps': 2.0}
    """
    return {".".join(path): value for path, value in _leaves(settings, ())}


def _numbers(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Value]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _numbers(inner, (*path, str(key)))
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield path, value


def _leaves(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif path:
        yield path, value


def _name(path: tuple[str, ...]) -> str:
    *parents, last = path
    if any(p.endswith("_s") for p in parents) and not last.endswith("_s"):
        return "_".join([*(p.removesuffix("_s") for p in parents), last, "s"])
    return "_".join(path)
