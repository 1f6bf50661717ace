"""Messages between the engine's processes: msgspec structs."""

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

SPARE = -1  # slot of a standby worker


class Frame(msgspec.Struct, tag=True, kw_only=True, omit_defaults=True):
    """A frame; its class name is its type."""


class Item(Frame):
    """A model that workers serve."""

    name: str
    path: str
    pool: str | None  # path of the weight file that workers share; None: each has its own weights
    is_kept: bool = True  # True if weights are in memory at the start


class Bound(Frame):
    """Device of a worker, as NVML describes it."""

    uuid: str
    memory_bytes: int
    sm_count: int | None


class Variant(Frame):
    """A model's devices of layers, and homes of KV caches."""

    copies: tuple[tuple[int, ...], ...]  # for each layer, the devices that hold it
    homes: tuple[int, ...]  # indices into `Setup.homes`


class Setup(Frame):
    """First message to a worker: its models and shapes."""

    models: tuple[Item, ...]
    dtype: str
    linear: str
    executables: str | None
    rows: tuple[int, ...]
    budgets: tuple[int, ...]
    width: int
    superblocks: int
    superblock: int
    ahead: int = 0  # 1: a run's next step starts before the last one's tokens are read
    bound: tuple[Bound, ...] = ()
    devices: int = 1  # number that the worker computes with
    homes: tuple[tuple[int, ...], ...] = ()  # for each home, the device of each layer
    variants: tuple[Variant, ...] = ()  # of the layout; (): all is on the first device
    layout: dict[str, str] = {}  # what its mechanism's workers must know
    folder: str = ""  # of the engine's own files
    owns_files: bool = True  # True if weight files are removed with the engine
    opens: Literal["all", "kept", "none"] = "all"  # models to open before `Hello`; others later


# A worker's first frame names its slot and process, so that late frames of an older one are
# ignored.
class WorkerHello(Frame):
    """Message from a connected worker: its slot, or SPARE."""

    place: int
    generation: int


class Opening(Frame):
    """A starting worker's model and number of ready shapes."""

    model: str
    ready: int
    of: int  # shapes of all models
    compiled: int  # executables compiled rather than loaded


class Hello(Frame):
    """Message from a ready worker."""

    failed: dict[str, str]  # model name: reason
    compiled: int
    loaded: int
    ready_s: float


class Draws(Frame, kw_only=True):
    """Sampling parameters: fields of `c2c.transformer.Sampling`."""

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
    """A request new to a worker, with `drawn` generated `ids`."""

    request: int
    ids: tuple[int, ...]
    new: int
    drawn: int
    stop: tuple[int, ...]
    least: int = 0  # tokens before which it does not stop
    scores: int | None = None  # number of likeliest tokens to report; None: no scores
    prompt_scores: int | None = None  # the same for prompt tokens
    embeds: bool = False  # whether the first token's scores have the prompt's embedding
    grammar: str = ""  # of the answer, in llguidance's form; "": any text
    home: int = 0  # index into `Setup.homes`
    blocks: tuple[int, ...] = ()  # keys of the prompt's blocks, for the prefix cache


class Fill(Frame):
    """Compute further tokens of a prompt, less cached ones."""

    request: int
    tokens: int


class Load(Frame):
    """Make a model runnable; answered by `Loaded`."""

    plan: int
    instance: int
    model: str
    variant: int = 0
    moved: tuple[tuple[int, int], ...] = ()  # as in the `Relayout` to the variant


class Relayout(Frame):
    """Change an instance's variant; answered by `Relaid`."""

    instance: int
    variant: int
    moved: tuple[tuple[int, int], ...]  # (request, new home)


class Relaid(Frame):
    """An instance's variant has changed."""

    instance: int
    variant: int
    weight_bytes: int  # copied
    kv_bytes: int  # copied
    pieces: int  # number of copies between steps
    longest_s: float  # longest of them
    compiled: int  # executables compiled during the change


class Loaded(Frame):
    """The instance is ready for its first step."""

    plan: int
    seconds: float


class Run(Frame):
    """Run up to `steps` equal steps, answered by `Stepped`."""

    plan: int
    instance: int
    submits: tuple[Submit, ...]
    fills: tuple[Fill, ...]
    decodes: tuple[int, ...]
    steps: int


class Scored(Frame):
    """Log-probabilities of a token and of the likeliest."""

    request: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    embedding: bytes = b""  # of the prompt, float32 of length 1


class Prompted(Frame):
    """Scores of a prompt from index `first` on; token 0 has none."""

    request: int
    first: int
    scores: tuple[Scored, ...]


class Stepped(Frame):
    """Message from a worker: a step has ended."""

    plan: int
    number: int  # from 0
    is_last: bool
    tokens: tuple[tuple[int, int, str | None], ...]  # request, token, reason if it ends
    seconds: float  # on the device
    host_s: float  # further time of the worker
    calls: tuple[tuple[int, int], ...]  # (chunk with padding, rows of one token) of each call
    kv_tokens: int  # positions that the rows of one token attend to
    compiled: int  # executables compiled during the step
    scores: tuple[Scored, ...] = ()
    prompts: tuple[Prompted, ...] = ()
    tasks: int = 0  # that another worker computed
    found: tuple[tuple[int, int], ...] = ()  # (request, prompt tokens found in the cache)


class Interrupt(Frame):
    """End the run at the next step boundary."""

    plan: int


class Free(Frame):
    """Free the memory of requests."""

    requests: tuple[int, ...]


class ForgetBlocks(Frame):
    """Evict prompt blocks from the prefix cache."""

    keys: tuple[int, ...]


class Unload(Frame):
    """Free an instance."""

    instance: int


class Admit(Frame):
    """Prepare a further model while serving; answered by `Admitted`."""

    item: Item


class Admitted(Frame):
    """A model can be loaded, or why not."""

    model: str
    failed: str = ""


class Drop(Frame):
    """Unmap a model's weights; no instance uses them."""

    model: str


class Stop(Frame):
    """End the process."""


class FrontHello(Frame):
    """Message from the connected front."""


class ModelInfo(Frame):
    """Description of a model, for clients."""

    name: str
    path: str
    context: int  # most tokens, prompt and answer
    vocab: int
    failed: str = ""  # reason if it is not served


class Starting(Frame):
    """Progress of the start."""

    what: str


class Models(Frame):
    """Models, sent once requests are accepted and after failures."""

    models: tuple[ModelInfo, ...]
    max_open: int  # most concurrent requests
    adds: bool = False  # True if models can be added and removed
    first: int = 1  # number of the front's first message; no other front had it


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
    embeds: bool = False
    grammar: str = ""
    deadline_s: float | None = None
    priority: int | None = None
    calls_tool: bool = False  # whether its answer may end in a call of a tool


class Abort(Frame):
    """Cancel a request; `is_done`: at a stop string."""

    request: int
    is_done: bool = False


class Tokens(Frame):
    """New tokens of a request, for the front."""

    request: int
    tokens: tuple[int, ...]
    scores: tuple[Scored, ...] = ()  # one for each token, if asked for
    prompt: tuple[Scored, ...] = ()  # scores of next prompt tokens, sent before any token
    found: int = 0  # prompt tokens found in the prefix cache, sent before any token


class Ended(Frame):
    """End of a request, sent once."""

    request: int
    why: str  # "stop", "length", or a failure's outcome
    retry_s: float = 0.0


class Drain(Frame):
    """Refuse new requests, or accept them again."""

    is_on: bool


class Manage(Frame):
    """Load, unload, pin or unpin a model's weights."""

    number: int
    model: str
    what: Literal["load", "unload", "pin", "unpin"]


class Add(Frame):
    """Add a checkpoint; answered by `Managed`."""

    number: int
    path: str  # within the folder `add_from`
    model: str = ""  # name; "": as in a catalog


class Remove(Frame):
    """Remove a model; answered by `Managed`."""

    number: int
    model: str


class Managed(Frame):
    """Result of `Manage`, `Add` or `Remove`."""

    number: int
    refused: str = ""
    param: str = ""  # invalid field of the request
    status: int = 409  # HTTP status of a refusal
    model: str = ""  # name of the added model


class Watch(Frame):
    """Report the current state once."""

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
