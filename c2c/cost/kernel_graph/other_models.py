"""Kernels of state-space models, diffusion transformers and vision encoders, for placement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from c2c.cost.kernel_graph.kernels import Batch, KernelList, StepKernel

__all__ = [
    "MAMBA",
    "SD35",
    "VISION",
    "DiffusionShape",
    "MambaShape",
    "VisionShape",
    "diffusion_kernels",
    "mamba_kernels",
    "vision_kernels",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class MambaShape:
    """Shape of Mamba-2: selective state spaces instead of attention."""

    layers: int
    hidden: int
    inner: int
    heads: int
    head_dim: int
    state: int
    groups: int
    convolution: int
    vocab: int
    chunk: int = 256  # tokens in one chunk of the scan

    @property
    def channels(self) -> int:
        """Channels of the convolution over tokens: x, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def state_elements(self) -> int:
        """Elements of a sequence's state in one layer."""
        return self.heads * self.head_dim * self.state + (self.convolution - 1) * self.channels


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionShape:
    """Shape of a diffusion transformer with joint attention of image and text."""

    blocks: int
    dual_blocks: int  # number of first layers in which the image also attends to itself
    hidden: int
    latent: int  # channels of a patch of 2 x 2
    image_tokens: int
    text_tokens: int
    text_width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionShape:
    """Shape of an image encoder that merges patches by four."""

    layers: int
    hidden: int
    intermediate: int
    patch_elements: int
    window: int  # patches in one attention window, except in `full_layers`
    full_layers: tuple[int, ...]
    out: int


# Source: Mamba-Codestral-7B-v0.1's public configuration.
MAMBA: Final = MambaShape(
    layers=64, hidden=4096, inner=8192, heads=128, head_dim=64, state=128, groups=8,
    convolution=4, vocab=32768,
)  # fmt: skip

# Source: Stable Diffusion 3.5 Medium's public configuration; 1024 x 1024 pixels are 64 x 64 patches
# of a latent eight times smaller; text is CLIP's 77 and T5's 256 tokens.
SD35: Final = DiffusionShape(
    blocks=24, dual_blocks=13, hidden=1536, latent=64, image_tokens=4096, text_tokens=333,
    text_width=4096,
)  # fmt: skip

# Source: Qwen2.5-VL-7B-Instruct's public configuration, `vision_config`.
VISION: Final = VisionShape(
    layers=32, hidden=1280, intermediate=3420, patch_elements=3 * 2 * 14 * 14, window=64,
    full_layers=(7, 15, 23, 31), out=3584,
)  # fmt: skip


def mamba_kernels(shape: MambaShape, batch: Batch) -> tuple[StepKernel, ...]:
    """Return a step's kernels: prefill for rows of several tokens."""
    graph = KernelList()
    tokens, d, inner = batch.tokens, shape.hidden, shape.inner
    in_out = 2 * inner + 2 * shape.groups * shape.state + shape.heads
    states = batch.rows * shape.heads * shape.head_dim * shape.state
    x = graph.add("embed", -1, weight=tokens * d, write=tokens * d)
    for layer in range(shape.layers):
        norm = graph.add("norm", layer, x, core=6 * tokens * d, read=tokens * d, write=tokens * d)
        split = graph.gemm("in_proj", layer, norm, tokens, d, in_out)
        mixed = graph.add(
            "convolution", layer, split, core=2 * shape.convolution * tokens * shape.channels,
            cache=2 * batch.rows * (shape.convolution - 1) * shape.channels,
            weight=shape.convolution * shape.channels, read=tokens * shape.channels,
            write=tokens * shape.channels,
        )  # fmt: skip
        if batch.chunk == 1:
            y = graph.add(
                "state_update", layer, mixed, split, core=7 * states, cache=2 * states,
                read=tokens * (shape.channels + shape.heads), write=tokens * inner,
            )  # fmt: skip
        else:
            y = _scan(graph, shape, batch, layer, mixed, split)
        gated = graph.add("gated_norm", layer, y, split, core=10 * tokens * inner,
                         read=2 * tokens * inner, write=tokens * inner)  # fmt: skip
        out = graph.gemm("out_proj", layer, gated, tokens, inner, d)
        x = graph.add("add", layer, out, x, core=tokens * d, read=2 * tokens * d, write=tokens * d)
    last = batch.rows * d
    norm = graph.add("norm_end", -1, x, core=6 * last, read=last, write=last)
    head = graph.gemm("head", -1, norm, batch.rows, d, shape.vocab)
    logits = batch.rows * shape.vocab
    graph.add("argmax", -1, head, core=logits, read=logits, write=batch.rows)
    return tuple(graph.made)


def _scan(
    graph: KernelList, shape: MambaShape, batch: Batch, layer: int, mixed: int, split: int
) -> int:
    tokens, wide = batch.tokens, shape.heads * shape.head_dim
    chunk = min(shape.chunk, batch.chunk)
    chunks = batch.rows * -(-batch.chunk // chunk)
    states = chunks * wide * shape.state
    keys = tokens * shape.groups * shape.state
    steps = graph.add("chunk_cumsum", layer, split, core=4 * tokens * shape.heads,
                     read=tokens * shape.heads, write=2 * tokens * shape.heads)  # fmt: skip
    partial = graph.add("chunk_state", layer, mixed, steps, tensor=2 * tokens * wide * shape.state,
                   read=tokens * wide + keys, write=states)  # fmt: skip
    passed = graph.add("state_passing", layer, partial, core=2 * states, read=states, write=states)
    scores = graph.add("chunk_scores", layer, mixed, tensor=2 * keys * chunk, read=2 * keys,
                      write=tokens * chunk * shape.groups)  # fmt: skip
    return graph.add(
        "chunk_scan", layer, mixed, scores, passed, steps,
        tensor=2 * tokens * wide * (chunk + shape.state),
        read=tokens * (wide + chunk * shape.groups) + keys + states, write=tokens * wide,
    )  # fmt: skip


def diffusion_kernels(shape: DiffusionShape, images: int) -> tuple[StepKernel, ...]:
    """Return the kernels of a denoising step of several images."""
    graph = KernelList()
    rows, d = 2 * images, shape.hidden
    tokens = {"x": rows * shape.image_tokens, "c": rows * shape.text_tokens}
    x = graph.gemm("patch_embed", -1, graph.add("latents", -1, write=tokens["x"] * shape.latent),
                  tokens["x"], shape.latent, d)  # fmt: skip
    c = graph.gemm("text_embed", -1, graph.add("texts", -1, write=tokens["c"] * shape.text_width),
                  tokens["c"], shape.text_width, d)  # fmt: skip
    when = graph.gemm("time_embed", -1, graph.add("times", -1, write=rows * d), rows, d, d)
    for layer in range(shape.blocks):
        x, c = _joint_block(graph, shape, layer, rows, {"x": x, "c": c}, when, tokens)
    scale = graph.gemm("modulation_end", -1, when, rows, d, 2 * d)
    norm = _elementwise(graph, "norm_end", -1, 8, tokens["x"] * d, x, scale)
    graph.gemm("unpatch", -1, norm, tokens["x"], d, shape.latent)
    return tuple(graph.made)


def _joint_block(
    graph: KernelList, shape: DiffusionShape, layer: int, rows: int, streams: dict[str, int],
    when: int, tokens: dict[str, int],
) -> tuple[int, int]:  # fmt: skip
    d, seen = shape.hidden, shape.image_tokens + shape.text_tokens
    is_dual = layer < shape.dual_blocks
    scales, parts = {}, []
    for s, stream in streams.items():
        wide = (9 if s == "x" and is_dual else 6) * d
        scales[s] = graph.gemm(f"modulation_{s}", layer, when, rows, d, wide)
        norm = _elementwise(graph, f"norm1_{s}", layer, 8, tokens[s] * d, stream, scales[s])
        qkv = graph.gemm(f"qkv_{s}", layer, norm, tokens[s], d, 3 * d)
        parts.append(_elementwise(graph, f"qk_norm_{s}", layer, 6, 2 * tokens[s] * d, qkv))
        if s == "x":
            normed = norm
    attention = graph.add(
        "attention", layer, *parts, tensor=4 * rows * seen * seen * d,
        core=5 * rows * seen * seen * d / 64, read=3 * rows * seen * d, write=rows * seen * d,
    )  # fmt: skip
    out = {}
    for s, stream in streams.items():
        m = tokens[s]
        o = graph.gemm(f"o_{s}", layer, attention, m, d, d)
        added = _elementwise(graph, f"add1_{s}", layer, 2, 2 * m * d, o, stream, scales[s])
        if s == "x" and is_dual:
            qkv = graph.gemm("qkv_self", layer, normed, m, d, 3 * d)
            ready = _elementwise(graph, "qk_norm_self", layer, 6, 2 * m * d, qkv)
            pairs = rows * shape.image_tokens**2
            alone = graph.add("attention_self", layer, ready, tensor=4 * pairs * d,
                             core=5 * pairs * d / 64, read=3 * m * d, write=m * d)  # fmt: skip
            o = graph.gemm("o_self", layer, alone, m, d, d)
            added = _elementwise(graph, "add_self", layer, 2, 2 * m * d, o, added, scales[s])
        norm = _elementwise(graph, f"norm2_{s}", layer, 8, m * d, added, scales[s])
        up = graph.gemm(f"up_{s}", layer, norm, m, d, 4 * d)
        activated = _elementwise(graph, f"activate_{s}", layer, 10, 4 * m * d, up)
        down = graph.gemm(f"down_{s}", layer, activated, m, 4 * d, d)
        out[s] = _elementwise(graph, f"add2_{s}", layer, 2, 2 * m * d, down, added, scales[s])
    return out["x"], out["c"]


def vision_kernels(shape: VisionShape, images: int, patches: int) -> tuple[StepKernel, ...]:
    """Return the kernels for so many patches."""
    graph = KernelList()
    m, d, f = images * patches, shape.hidden, shape.intermediate
    x = graph.gemm("patch_embed", -1, graph.add("pixels", -1, write=m * shape.patch_elements), m,
                  shape.patch_elements, d)  # fmt: skip
    for layer in range(shape.layers):
        norm = _elementwise(graph, "vision_norm1", layer, 6, m * d, x)
        qkv = graph.gemm("vision_qkv", layer, norm, m, d, 3 * d)
        turned = _elementwise(graph, "vision_rope", layer, 6, 2 * m * d, qkv)
        seen = patches if layer in shape.full_layers else min(shape.window, patches)
        attention = graph.add("vision_attention", layer, turned, tensor=4 * m * seen * d,
                             core=5 * m * seen * d / 80, read=3 * m * d, write=m * d)  # fmt: skip
        o = graph.gemm("vision_o", layer, attention, m, d, d)
        added = _elementwise(graph, "vision_add1", layer, 1, 2 * m * d, o, x)
        norm = _elementwise(graph, "vision_norm2", layer, 6, m * d, added)
        up = graph.gemm("vision_gate_up", layer, norm, m, d, 2 * f)
        activated = _elementwise(graph, "vision_activate", layer, 6, m * f, up)
        down = graph.gemm("vision_down", layer, activated, m, f, d)
        x = _elementwise(graph, "vision_add2", layer, 1, 2 * m * d, down, added)
    norm = _elementwise(graph, "merge_norm", -1, 6, m * d, x)
    up = graph.gemm("merge_up", -1, norm, m / 4, 4 * d, 4 * d)
    activated = _elementwise(graph, "merge_activate", -1, 10, m * d, up)
    graph.gemm("merge_down", -1, activated, m / 4, 4 * d, shape.out)
    return tuple(graph.made)


def _elementwise(
    graph: KernelList, kind: str, layer: int, flops: int, elements: float, *takes: int
) -> int:
    return graph.add(
        kind, layer, *takes, core=flops * elements, read=elements, write=elements
    )  # fmt: skip
