"""Generation into a run folder."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from c2c.models import name_of
from c2c.runs import RunDir, check_folder
from c2c.transformer import Hybrid, Linear, Model, Request, load
from c2c.transformer.layers.linear import linear_by_name
from c2c.transformer.weights.default_checkpoint import default_checkpoint
from experiments.generation.settings import LinearSettings, Settings
from experiments.generation.text import Answer, Asked, asked, tokenizer_of, wanted_of

__all__ = ["Generated", "Loaded", "Screen", "generate"]

_NOT_INPUTS = ("out", "folder", "resume", "overwrite")
_DATA = ("checkpoint_files",)
_RESULTS = ("generations.parquet", "run.parquet", "texts.jsonl", "text.txt")
_CODE = ("c2c", "pallas_kernels", "experiments.generation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Callbacks that display a run's progress.

    Attributes:
      note: a remark for the user.
      started: the encoded prompts, once the model is loaded.
      piece: a prompt's index and its new text.
      token: number of tokens drawn so far.
      stopped: returns True if the run has to stop.
    """

    note: Callable[[str], None]
    started: Callable[[Sequence[Asked]], None]
    piece: Callable[[int, str], None]
    token: Callable[[int], None]
    stopped: Callable[[], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """Complete run.

    Attributes:
      statistics: times and counts; None if it was complete before.
    """

    folder: Path
    texts: tuple[str, ...]
    statistics: Mapping[str, Any] | None


@dataclass(slots=True)
class Loaded:
    """Model of the last run, for points that share it."""

    _key: tuple[Any, ...] | None = field(default=None)
    _model: Model | None = field(default=None)

    def model(self, settings: Settings, path: Path) -> Model:
        """Return the settings' model, loaded if another."""
        dtype, linear = settings.dtype, _linear(settings.linear)
        key = (path, dtype, settings.linear.name, settings.quantize, settings.executables,
               settings.pool)  # fmt: skip
        if self._model is None or key != self._key:
            self._model = None  # freed first, so that both need not fit
            more: dict[str, Any] = {}
            if settings.quantize is not None:
                more["quantize"] = settings.quantize
            self._model = load(
                path,
                dtype,
                linear=linear,
                pool=settings.pool,
                executables=settings.executables,
                ahead=partial(wanted_of, settings.prompts),
                **more,
            )
            self._key = key
        return replace(self._model, linear=linear)


def generate(settings: Settings, loaded: Loaded, screen: Screen) -> Generated:
    """Run a point into its folder, or return complete results."""
    path = settings.checkpoint or default_checkpoint()
    config = _config(settings, path)
    # Prompts are encoded before the folder is made, so that errors leave none.
    start = time.perf_counter()
    folder = _folder(settings, path, config)
    if settings.resume and RunDir.is_current(folder, config, packages=_CODE, ignore=_NOT_INPUTS):
        return Generated(folder=folder, texts=_texts(folder), statistics=None)
    rules: dict[str, Any] = {
        "overwrite": settings.overwrite,
        "names": _RESULTS,
        "field": "out" if settings.folder is None else "folder",
    }
    check_folder(folder, config, ignore=(*_NOT_INPUTS, *_DATA), **rules)
    model = loaded.model(settings, path)
    prompts = [asked(model, prompt) for prompt in settings.prompts]
    for number, request in enumerate(prompts, 1):
        if request.new < request.prompt.max_new_tokens:
            where = f"prompt {number}: " if len(prompts) > 1 else ""
            screen.note(
                f"{where}max_new_tokens={request.prompt.max_new_tokens} becomes {request.new}: the "
                f"model's context is {model.context} tokens"
            )
    load_s = time.perf_counter() - start
    with RunDir.open(
        folder,
        config,
        packages=_CODE,
        ignore=_NOT_INPUTS,
        data=_DATA,
        seed=settings.prompts[0].seed,
        resume=False,
        **rules,
    ) as run:
        screen.started(prompts)
        before = _counts(model)
        start = time.perf_counter()
        answers = [Answer(request, tokenizer_of(model)) for request in prompts]
        try:
            if len(prompts) == 1:
                _one(model, answers[0], screen, start)
            else:
                _many(model, answers, settings, screen, start)
        finally:
            for number, answer in enumerate(answers):
                screen.piece(number, answer.finish())
        wall_s = time.perf_counter() - start
        executables = {name: after - before[name] for name, after in _counts(model).items()}
        statistics = {
            "load_s": load_s,
            "wall_s": wall_s,
            **_totals(model, answers, wall_s),
            **executables,
        }
        _write(run, settings, path, model, answers, statistics)
    return Generated(
        folder=folder, texts=tuple(answer.text for answer in answers), statistics=statistics
    )


def _one(model: Model, answer: Answer, screen: Screen, start: float) -> None:
    sampling = answer.asked.prompt.sampling()
    tokens = model.stream(
        answer.asked.ids,
        answer.asked.new,
        stop_tokens=answer.asked.stops,
        **{option.name: getattr(sampling, option.name) for option in fields(sampling)},
    )
    for token in tokens:
        screen.piece(0, answer.push(token, time.perf_counter() - start))
        screen.token(len(answer.tokens))
        if screen.stopped():
            raise KeyboardInterrupt
        if answer.ended is not None:
            return


def _many(
    model: Model, answers: Sequence[Answer], settings: Settings, screen: Screen, start: float
) -> None:
    requests = [
        Request(
            ids=answer.asked.ids,
            max_new_tokens=answer.asked.new,
            sampling=answer.asked.prompt.sampling(),
            stop=answer.asked.stops,
        )
        for answer in answers
    ]

    def ends(number: int, token: int) -> bool:
        answer = answers[number]
        screen.piece(number, answer.push(token, time.perf_counter() - start))
        return answer.ended is not None

    batch = model.stream_batch(
        requests, rows=settings.rows, cache_tokens=settings.cache_tokens, ends=ends
    )
    done = [0] * len(answers)
    for drawn in batch:
        # A finished text counts with its most tokens, so that progress ends at 100 %.
        count = answers[drawn.request].asked.new if drawn.last else done[drawn.request] + 1
        done[drawn.request] = count
        screen.token(sum(done))
        if screen.stopped():
            raise KeyboardInterrupt


def _linear(settings: LinearSettings) -> Linear:
    if settings.name != "hybrid":
        return linear_by_name(settings.name)
    hybrid = Hybrid(sm_limit=settings.sm_limit, cluster=settings.cluster)
    return hybrid.with_alpha(**settings.alpha)  # an array, so that another alpha compiles nothing


def _config(settings: Settings, path: Path) -> dict[str, Any]:
    files = [path] if path.is_file() else sorted(p for p in path.iterdir() if p.is_file())
    return {
        **settings.given,
        "checkpoint": str(path),
        "checkpoint_files": {
            file.name: [file.stat().st_size, file.stat().st_mtime_ns] for file in files
        },
        "prompts": [asdict(prompt) for prompt in settings.prompts],
    }


def _folder(settings: Settings, path: Path, config: Mapping[str, Any]) -> Path:
    if settings.folder is not None:
        return settings.folder
    inputs = {k: v for k, v in config.items() if k not in (*_NOT_INPUTS, *_DATA)}
    digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:8]
    parts = (name_of(path), settings.linear.name, f"s{settings.prompts[0].seed}", digest)
    return settings.out / "_".join(re.sub(r"[^\w.-]+", "-", part) for part in parts)


def _texts(folder: Path) -> tuple[str, ...]:
    lines = (folder / "texts.jsonl").read_text("utf-8").splitlines()
    return tuple(json.loads(line)["text"] for line in lines)


def _counts(model: Model) -> dict[str, int]:
    executables = model.executables
    if executables is None:
        return {"executables_loaded": 0, "executables_compiled": 0}
    return {"executables_loaded": executables.loaded, "executables_compiled": executables.compiled}


def _totals(model: Model, answers: Sequence[Answer], wall_s: float) -> dict[str, Any]:
    kinds = model.placement().bytes_by_kind
    new = sum(len(answer.tokens) for answer in answers)
    return {
        "prompts": len(answers),
        "chats": sum(answer.asked.chat for answer in answers),
        "prompt_tokens": sum(len(answer.asked.ids) for answer in answers),
        "new_tokens": new,
        "first_token_s": min(answer.times_s[0] for answer in answers),
        "tokens_per_s": rate(answers[0].times_s) if len(answers) == 1 else new / wall_s,
        "device_bytes": kinds.get("device", 0),
        "host_bytes": sum(n for kind, n in kinds.items() if kind != "device"),
    }


def rate(times_s: Sequence[float]) -> float | None:
    """Return tokens a second from the second one on, or None."""
    if len(times_s) < 3:
        return None
    return (len(times_s) - 2) / (times_s[-1] - times_s[1])


def _write(
    run: RunDir,
    settings: Settings,
    path: Path,
    model: Model,
    answers: Sequence[Answer],
    statistics: Mapping[str, Any],
) -> None:
    shared = {
        "checkpoint": str(path),
        "linear": settings.linear.name,
        "dtype": str(model.params.dtype),
        "quantize": settings.quantize,
        **{f"alpha_{kind}": float(share) for kind, share in settings.linear.alpha.items()},
    }
    rows = [_row(number, answer) | shared for number, answer in enumerate(answers)]
    run.write_table("generations", {name: [row[name] for row in rows] for name in rows[0]})
    run.write_table("run", {name: [value] for name, value in (shared | dict(statistics)).items()})
    lines = ({"prompt": r["prompt"], "text": r["text"]} for r in rows)
    run.write_text(
        "texts.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    )
    if len(answers) == 1:
        run.write_text("text.txt", answers[0].text)


def _row(number: int, answer: Answer) -> dict[str, Any]:
    request = answer.asked
    settings = asdict(request.prompt)
    settings["stop"] = [str(stop) for stop in settings["stop"]]
    settings["logit_bias"] = json.dumps(settings["logit_bias"])  # Parquet refuses {}
    del settings["text"], settings["chat"]
    return {
        "number": number,
        "prompt": request.prompt.text,
        "text": answer.text,
        "ended": answer.ended,
        "stop_text": answer.stop_text,
        "chat": request.chat,
        "prompt_tokens": len(request.ids),
        "new_tokens": len(answer.tokens),
        "tokens": list(answer.tokens),
        "first_token_s": answer.times_s[0],
        "last_token_s": answer.times_s[-1],
        "tokens_per_s": rate(answer.times_s),
        **settings,
    }
