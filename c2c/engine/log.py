"""Log of the engine's processes on standard error."""

from __future__ import annotations

import logging

__all__ = ["LineFormatter", "log_to_stderr"]

_MOST = 2000  # characters of a line


class LineFormatter(logging.Formatter):
    """Formats a message as one escaped, cut line: clients cannot imitate records."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines."""
        lines = [f"{record.levelname} {_printable(record.getMessage())}"]
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            lines += [f"  | {_printable(line)}" for line in trace.split("\n")]
        return "\n".join(lines)


def _printable(text: str) -> str:
    result = text if len(text) <= _MOST else f"{text[:_MOST]}..."
    if result.isprintable():
        return result
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in result)
    return "".join(escaped)


def log_to_stderr() -> None:
    """Log warnings and errors to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
