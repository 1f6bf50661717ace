"""A section's module for tests: it runs cases itself, and says when it compiles."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from experiments.gpu.cases import Context


def serve(context: Context, requests: Iterable[str], say: Callable[[dict[str, Any]], None]) -> None:
    time.sleep(context.seed)  # a slow start
    say({"status": "ready"})
    for line in requests:
        spec = json.loads(line)
        if spec.get("told"):
            say({"compiling": True})
        time.sleep(spec["sleep_s"])
        if spec.get("told"):
            say({"compiling": False, "took_s": spec["sleep_s"]})
        say({"status": "ok", "rows": [{}]})
