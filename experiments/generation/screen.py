"""Console output: text on standard output, else standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rich.console import Console

from c2c.runs import progress_bar

if TYPE_CHECKING:
    from experiments.generation.execute import Generated, Screen
    from experiments.generation.text import Asked

__all__ = ["Display", "note"]

_HEAD = 72  # characters of a prompt in a heading


class Display:
    """Display of a run: a single text is streamed, several are printed at the end."""

    def __init__(self, stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._out = sys.stdout  # kept, as a progress bar redirects it
        self._drawn = ExitStack()
        self._asked: Sequence[Asked] = ()
        self._texts: list[str] = []
        self._report: Callable[[float], None] | None = None

    def screen(self) -> Screen:
        """Return the callbacks for `generate`."""
        from experiments.generation.execute import Screen

        return Screen(
            note=note,
            started=self._started,
            piece=self._piece,
            token=self._token,
            stopped=self._stopped,
        )

    def close(self) -> None:
        """Remove the progress bar; print held and unfinished texts."""
        self._drawn.close()
        if len(self._asked) > 1:
            for number, text in enumerate(self._texts):
                self._write(_heading(number + 1, self._asked[number].prompt.text) + text + "\n\n")
        elif self._texts and self._texts[0]:
            self._write("\n")
        self._texts = []

    def show(self, result: Generated, prompts: Sequence[str]) -> None:
        """Print a complete run's texts, or a new one's statistics."""
        if result.statistics is None:
            for number, text in enumerate(result.texts):
                head = _heading(number + 1, prompts[number]) if len(prompts) > 1 else ""
                self._write(head + text + ("\n\n" if head else "\n"))
        else:
            for line in _lines(result.statistics):
                note(line)
        state = "complete already, skipped" if result.statistics is None else "written"
        note(f"run folder ({state}): {result.folder}")

    def _started(self, requests: Sequence[Asked]) -> None:
        self._asked, self._texts = requests, [""] * len(requests)
        if len(requests) > 1:
            total = float(sum(request.new for request in requests))
            self._report = self._drawn.enter_context(progress_bar("tokens, at most", total))
        elif sys.stderr.isatty():
            console = Console(stderr=True)
            self._drawn.enter_context(console.status("reading the prompt", spinner="line"))

    def _piece(self, number: int, text: str) -> None:
        self._texts[number] += text
        if len(self._asked) == 1 and text:
            self._drawn.close()
            self._write(text)

    def _token(self, count: int) -> None:
        if self._report is not None:
            self._report(count)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()


def note(text: str) -> None:
    """Print a line to standard error."""
    print(text, file=sys.stderr, flush=True)


def _heading(number: int, prompt: str) -> str:
    line = " ".join(prompt.split())
    return f"[{number}] {line if len(line) <= _HEAD else line[: _HEAD - 3] + '...'}\n"


def _lines(stats: Any) -> list[str]:
    first, new, speed = stats["first_token_s"], stats["new_tokens"], stats["tokens_per_s"]
    if stats["prompts"] > 1:
        lead = f"{stats['prompts']} prompts, {stats['chats']} answered in a chat"
        then = f"{new} tokens in {stats['wall_s']:.2f} s, {speed:.1f} tokens/s"
    else:
        lead = "answered in a chat" if stats["chats"] else "continued (chat=true answers)"
        then = f"then {new - 1}" + ("" if speed is None else f" at {speed:.1f} tokens/s")
    return [
        f"{lead}: {stats['prompt_tokens']} prompt tokens, first token after {first:.2f} s, {then}",
        f"weights: {stats['host_bytes'] / 1e6:,.1f} MB in host memory, "
        f"{stats['device_bytes'] / 1e6:,.1f} MB in device memory, loaded in "
        f"{stats['load_s']:.2f} s",
        f"executables: {stats['executables_loaded']} loaded, "
        f"{stats['executables_compiled']} compiled",
    ]
