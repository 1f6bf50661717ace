"""Process that builds grammars: `python -m c2c.engine.front.trial`."""

from __future__ import annotations

import json
import resource
import signal
import sys

__all__ = ["MOST_BYTES", "MOST_CPU_S", "MOST_SYMBOLS", "fault"]

MOST_SYMBOLS = 25_000
"""Most symbols of a grammar's rules; a worker builds them within some 30 ms."""

MOST_CPU_S = 0.25
"""Most CPU time for a grammar."""

MOST_BYTES = 1 << 30
"""Most memory of the process."""

_STACK_BYTES = 4 << 20  # half of a worker's, as llguidance recurses
_MOST_SHOWN = 300
_BYTES = 256


def fault(grammar: str) -> str:
    """Return llguidance's reason against a grammar, or ""."""
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

    limits = LLParserLimits(max_grammar_size=MOST_SYMBOLS)
    has_failed, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=limits)
    if has_failed:
        return " ".join(" ".join(messages).split())[:_MOST_SHOWN]
    matcher = LLMatcher(LLTokenizer("byte"), grammar, log_level=0, limits=limits)
    if matcher.is_error():  # by tokens that only the model has
        return ""
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    if matcher.is_error():
        return "no text is of this form"
    first = (allowed & -allowed).bit_length() - 1
    if 0 <= first < _BYTES:  # not an end token
        matcher.consume_token(first)
        matcher.compute_bitmask()
    return matcher.get_error().partition("\n")[0][:_MOST_SHOWN] if matcher.is_error() else ""


# The kernel ends it at its limits of CPU time, memory and stack, since llguidance has none that
# holds for every grammar.
def main() -> None:
    """Print each grammar's fault, a line of the standard input."""
    for kind, most in (
        (resource.RLIMIT_AS, MOST_BYTES), (resource.RLIMIT_STACK, _STACK_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):  # fmt: skip
        hard = resource.getrlimit(kind)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, hard))
    fault("start: 'a'")  # imports
    for line in sys.stdin.buffer:
        grammar = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)  # its signal ends the process
        problem = fault(grammar)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        print(json.dumps(problem), flush=True)


if __name__ == "__main__":
    main()
