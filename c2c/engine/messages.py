"""Messages between the engine's processes: msgspec structs, carried by `c2c.engine.frames`.

Workers and the front connect to the scheduler's Unix socket. A worker's first frame names its
process, so that what an older process of the same place still says is nobody's.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

__all__ = [
    "SPARE",
    "Abort",
    "Add",
    "Admit",
    "Admitted",
    "Answered",
    "AnyFrame",
    "Ask",
    "Bound",
    "Drain",
    "Draws",
    "Drop",
    "Ended",
    "Fill",
    "ForgetBlocks",
    "Frame",
    "Free",
    "FrontHello",
    "Hello",
    "Interrupt",
    "Item",
    "Live",
    "Load",
    "Loaded",
    "Manage",
    "Managed",
    "ModelInfo",
    "Models",
    "Opening",
    "Prompted",
    "Relaid",
    "Relayout",
    "Remove",
    "Run",
    "Scored",
    "Setup",
    "Starting",
    "Stepped",
    "Stop",
    "Submit",
    "Tokens",
    "Unload",
    "Variant",
    "Watch",
    "WorkerHello",
]

SPARE = -1  # the place of a worker that stands by


class Frame(msgspec.Struct, tag=True, kw_only=True, omit_defaults=True):
    """A frame; its class name is its type."""


class Item(Frame):
    """A model that workers serve."""

    name: str
    path: str
    pool: str | None  # file of weights that workers share
    is_kept: bool = True  # in memory at the start


class Bound(Frame):
    """A device that a worker may see, by NVML."""

    uuid: str
    memory_bytes: int
    sm_count: int | None


class Variant(Frame):
    """Places of a model's layers, and of the keys and values of its requests."""

    copies: tuple[tuple[int, ...], ...]  # for each layer, the devices that hold it
    homes: tuple[int, ...]  # numbers of `Setup.homes`


class Setup(Frame):
    """First message to a worker: models that it serves, and their shapes."""

    models: tuple[Item, ...]
    dtype: str
    linear: str
    executables: str | None
    rows: tuple[int, ...]
    budgets: tuple[int, ...]
    width: int
    superblocks: int
    superblock: int
    ahead: int = 0  # steps of a run that are begun before the tokens of the one before are read
    bound: tuple[Bound, ...] = ()
    devices: int = 1  # that it computes with
    homes: tuple[tuple[int, ...], ...] = ()  # for each layer of a request, its device
    variants: tuple[Variant, ...] = ()  # of the layout; (): all on the first device
    owns_files: bool = True  # those of weights end with the engine
    opens: Literal["all", "kept", "none"] = "all"  # before it is ready; the rest when first used


class WorkerHello(Frame):
    """Message from a connected worker: index of its place, or SPARE for any."""

    place: int
    generation: int


class Opening(Frame):
    """Progress of a starting worker: the current model, and the number of ready shapes."""

    model: str
    ready: int
    of: int  # of all models
    compiled: int  # executables; the others were loaded


class Hello(Frame):
    """Message from a worker that is ready to serve."""

    failed: dict[str, str]  # models by name, and why
    compiled: int
    loaded: int
    ready_s: float


class Draws(Frame, kw_only=True):
    """A request's way of drawing: the fields of `c2c.transformer.Sampling`."""

    temperature: float
    seed: int
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}

    def sampling(self) -> dict[str, Any]:
        """Return these fields by name."""
        return {name: getattr(self, name) for name in Draws.__struct_fields__}


class Submit(Draws, kw_only=True):
    """A request that a worker does not hold yet; `drawn` of its tokens are its own."""

    request: int
    ids: tuple[int, ...]
    new: int
    drawn: int
    stop: tuple[int, ...]
    least: int = 0  # draws before which it does not stop
    scores: int | None = None  # likeliest tokens to tell
    prompt_scores: int | None = None  # likewise, of the tokens of the prompt
    grammar: str = ""  # in llguidance's form, of the answer; "": any text
    home: int = 0  # of its keys and values, where there are several
    blocks: tuple[int, ...] = ()  # keys of its prompt's, with which it may begin


class Fill(Frame):
    """Compute so many further tokens of a prompt, beyond those in blocks that are there."""

    request: int
    tokens: int


class Load(Frame):
    """Make a model runnable as an instance; answered by `Loaded`."""

    plan: int
    instance: int
    model: str
    variant: int = 0
    moved: tuple[tuple[int, int], ...] = ()  # as the `Relayout` to the variant said


class Relayout(Frame):
    """Change an instance's variant while it serves on; answered by `Relaid`."""

    instance: int
    variant: int
    moved: tuple[tuple[int, int], ...]  # requests that change their home, and to which


class Relaid(Frame):
    """The variant has changed."""

    instance: int
    variant: int
    weight_bytes: int  # that were copied
    kv_bytes: int
    pieces: int  # step boundaries at which something was
    longest_s: float  # that one of them took
    compiled: int  # executables that were not ready


class Loaded(Frame):
    """The instance can take its first step."""

    plan: int
    seconds: float


class Run(Frame):
    """Run one step that computes these, or up to `steps` equal decode steps; `Stepped` for each."""

    plan: int
    instance: int
    submits: tuple[Submit, ...]
    fills: tuple[Fill, ...]
    decodes: tuple[int, ...]
    steps: int


class Scored(Frame):
    """Log-probabilities of a request's token and of the likeliest ones."""

    request: int
    logprob: float
    top: tuple[tuple[int, float], ...]


class Prompted(Frame):
    """Scores of a prompt's tokens from a place on; the first token has none."""

    request: int
    first: int
    scores: tuple[Scored, ...]


class Stepped(Frame):
    """Message from a worker: a step has ended."""

    plan: int
    number: int  # from 0
    is_last: bool
    tokens: tuple[tuple[int, int, str | None], ...]  # request, token, why it is over with it
    seconds: float  # of the step on the device
    host_s: float  # of the worker beside that
    calls: tuple[tuple[int, int], ...]  # (chunk with padding, rows of one token) of each call
    kv_tokens: int  # positions that the rows of one token attend to
    compiled: int  # executables that were not ready
    scores: tuple[Scored, ...] = ()
    prompts: tuple[Prompted, ...] = ()
    found: tuple[tuple[int, int], ...] = ()  # requests, and tokens to fill that were there


class Interrupt(Frame):
    """End the run of decode steps at the next step boundary."""

    plan: int


class Free(Frame):
    """Free what requests hold, where they are here."""

    requests: tuple[int, ...]


class ForgetBlocks(Frame):
    """Keep blocks of prompts no longer."""

    keys: tuple[int, ...]


class Unload(Frame):
    """Free an instance."""

    instance: int


class Admit(Frame):
    """Have a further model ready to be loaded, while others are served; answered by `Admitted`."""

    item: Item


class Admitted(Frame):
    """The model can be loaded, or why not."""

    model: str
    failed: str = ""


class Drop(Frame):
    """The weights of a model go from memory; no instance has it."""

    model: str


class Stop(Frame):
    """End the process."""


class FrontHello(Frame):
    """Message from the connected front."""


class ModelInfo(Frame):
    """A model as the front describes it to clients."""

    name: str
    path: str
    context: int  # tokens, prompt and answer
    vocab: int
    failed: str = ""  # why it is not served


class Starting(Frame):
    """Progress of the start, sent to the front before models can be served."""

    what: str


class Models(Frame):
    """Models, sent to the front when requests are accepted and whenever a model fails."""

    models: tuple[ModelInfo, ...]
    max_open: int  # requests at the same time
    adds: bool = False  # whether models may be added and removed


class Ask(Draws, kw_only=True):
    """Message from the front: serve a prompt."""

    request: int
    model: str
    ids: tuple[int, ...]
    new: int
    stop: tuple[int, ...]
    least: int = 0
    scores: int | None = None
    prompt_scores: int | None = None
    grammar: str = ""
    deadline_s: float | None = None
    priority: int | None = None


class Abort(Frame):
    """Message from the front: cancel a request; `is_done`: a stop string was found."""

    request: int
    is_done: bool = False


class Tokens(Frame):
    """New tokens of a request, for the front."""

    request: int
    tokens: tuple[int, ...]
    scores: tuple[Scored, ...] = ()  # one a token, where they were asked for
    prompt: tuple[Scored, ...] = ()  # of the prompt's next tokens, before any token
    found: int = 0  # tokens of the prompt that were not computed; before any token, too


class Ended(Frame):
    """End of a request, sent once to the front."""

    request: int
    why: str  # stop, length, or an outcome of the ledger
    retry_s: float = 0.0


class Drain(Frame):
    """Message from the front: refuse new requests, or accept them again."""

    is_on: bool


class Manage(Frame):
    """Message from the front: load, unload, pin or unpin a model's weights."""

    number: int
    model: str
    what: Literal["load", "unload", "pin", "unpin"]


class Add(Frame):
    """Message from the front: add a checkpoint; answered by `Managed`."""

    number: int
    path: str  # within the folder that the engine adds from
    model: str = ""  # its name; "": as in a catalog


class Remove(Frame):
    """Message from the front: remove a model; answered by `Managed`."""

    number: int
    model: str


class Managed(Frame):
    """Result of `Manage`, `Add` or `Remove`, for the front: success, or the reason of failure."""

    number: int
    refused: str = ""
    param: str = ""  # the field of the request that is wrong
    status: int = 409  # of HTTP, where it was refused
    model: str = ""  # that was added


class Watch(Frame):
    """Message from the front: report the current state once."""

    number: int


class Live(Frame):
    """Current state for the front, as JSON."""

    number: int
    state: bytes


Answered = Tokens | Ended

_ToWorker = (
    Setup | Admit | Load | Relayout | Run | Interrupt | Free | ForgetBlocks | Unload | Drop | Stop
)
_FromWorker = WorkerHello | Opening | Hello | Admitted | Loaded | Relaid | Stepped
_ToFront = Starting | Models | Tokens | Ended | Live | Managed
_FromFront = FrontHello | Ask | Abort | Drain | Manage | Add | Remove | Watch
AnyFrame = _ToWorker | _FromWorker | _ToFront | _FromFront
