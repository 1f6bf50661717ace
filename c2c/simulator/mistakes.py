"""What Numba says of a user's policy, in one line."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

from c2c.errors import PolicyError
from c2c.policies.decision import implementations

__all__ = ["policy_error"]

# Lines of Numba's report that name no reason.
_NOISE = re.compile(
    r"(\^|No match\.|During|raised from|<source elided>|def |With argument|Overload|- |Rejected|"
    r"There are|>>>|Use|File|\()"
)


def policy_error(error: Exception, rules: Any) -> Exception:
    """Return the error as a user's policy's, naming line and reason; itself if none is at fault.

    Args:
      error: what Numba raised.
      rules: the policies it was compiling.
    """
    files = {}
    for policy in rules.system:
        if not type(policy).__module__.startswith("c2c."):
            for function in implementations(type(policy)):
                files[Path(inspect.getsourcefile(function) or "").name] = type(policy).__name__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for k, line in enumerate(lines):
        found = re.match(r'File "(.+)", line (\d+)', line)
        if found is None or Path(found[1]).name not in files:
            continue
        name = files[Path(found[1]).name]
        return PolicyError(
            name, f"{Path(found[1]).name}, line {found[2]}: {_reason(lines, k, error)}"
        )
    return error


def _reason(lines: list[str], at: int, error: Exception) -> str:
    if "NRT required" in str(error):
        return "it allocates (an array, list or text), which a compiled policy may not"
    for line in lines[max(0, at - 3) : at]:
        if called := re.search(r"resolving callee type: Function\((.+?)(?: at 0x\w+>)?\)$", line):
            return f"Numba has no {called[1].strip('<>')} for these types"
    return next((x for x in reversed(lines[:at]) if not _NOISE.match(x)), "Numba cannot compile it")
