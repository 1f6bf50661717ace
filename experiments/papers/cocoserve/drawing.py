"""CoCoServe's figures: gains from copies, costs of operations."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from experiments.claims import claim
from experiments.figures.style import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PUBLISHED,
    SKY,
    VERMILION,
    Tables,
    canvas,
    finish,
    rows_of,
)

__all__ = [
    "draw_costs",
    "draw_failures",
    "draw_gains",
    "draw_instances",
    "draw_memory",
    "draw_rates",
    "draw_two_cards",
    "draw_used",
]


def draw_gains(tables: Tables, caption: str) -> Figure:
    """Draw gains in throughput and latency by copied layers and by copies."""
    figure, axes = canvas(10.0, 6.4, 2, 2)
    rows = rows_of(tables["gains"])
    copied = max((r["copies"], r["layers"]) for r in rows)[1]  # layers with more than two copies
    titles = {
        "throughput_gain_percent": "throughput, gain (%)",
        "latency_cut_percent": "latency, cut (%)",
    }
    for column, (name, title) in enumerate(titles.items()):
        by_layers, by_copies = axes[column], axes[2 + column]
        for load, style in (("low", "--"), ("peak", "-")):
            mine = [r for r in rows if r["load"] == load]
            two = sorted((r["layers"], r[name]) for r in mine if r["copies"] <= 2)
            some = sorted(
                [(1, 0.0), *((r["copies"], r[name]) for r in mine if r["layers"] == copied)]
            )
            for panel, points in ((by_layers, two), (by_copies, some)):
                x, y = zip(*points, strict=True)
                panel.plot(x, y, style, marker="o", color=BLUE, label=f"{load}, ours")
        by_layers.set_xlabel("layers with two copies")
        by_copies.set_xlabel(f"copies of {copied} layers")
        by_copies.set_xticks([1, 2, 3, 4])
        for panel in (by_layers, by_copies):
            panel.set_ylabel(title)
    gains = {n: claim(f"cocoserve.fig6a.rep{n}").value for n in (20, 25, 30)}
    four = claim("cocoserve.fig6c.dop4_peak").value
    for panel, printed in ((axes[0], gains), (axes[2], {4: four})):
        panel.plot([*printed], [*printed.values()], **PUBLISHED, label="peak, paper")
        panel.legend()
    return finish(figure, "CoCoServe: throughput and latency by copies of layers", caption)


def draw_costs(tables: Tables, caption: str) -> Figure:
    """Draw operations' seconds and memory by layers, beside printed values."""
    figure, (left, right) = canvas(9.0, 3.8, 2)
    rows = rows_of(tables["operations"])
    for kind, colour in (("replicate", BLUE), ("migrate", SKY)):
        mine = [r for r in rows if r["kind"] == kind]
        layers = [r["layers"] for r in mine]
        left.plot(
            layers, [r["seconds"] for r in mine], marker="o", color=colour, label=f"{kind}, ours"
        )
        left.plot(
            layers, [r["printed_s"] for r in mine],
            **{**PUBLISHED, "markeredgecolor": colour}, label=f"{kind}, paper",
        )  # fmt: skip
    mine = [r for r in rows if r["kind"] == "migrate"]
    layers = [r["layers"] for r in mine]
    right.plot(layers, [r["memory_mb"] / 1024 for r in mine], marker="o", color=BLUE, label="ours")
    right.plot(layers, [r["printed_mb"] / 1024 for r in mine], **PUBLISHED, label="paper")
    for axes, title in ((left, "time (s)"), (right, "memory (GiB)")):
        axes.set_xlabel("layers")
        axes.set_ylabel(title)
        axes.set_ylim(bottom=0)
        axes.legend()
    return finish(figure, "CoCoServe: time and memory of operations on layers", caption)


def draw_memory(tables: Tables, caption: str) -> Figure:
    """Draw latency by rate, with a layer at home and away."""
    figure, (left, right) = canvas(9.0, 3.8, 2)
    fixed = next(r["batch"] for r in rows_of(tables["latencies"]))
    batches = {"15": f"batches of {fixed}", "memory": "all that waits"}
    for batch, colour in (("15", VERMILION), ("memory", INK)):
        for migrated, style in ((0, "-"), (1, ":")):
            rows = rows_of(tables["latencies"], migrated=migrated)
            mine = [r for r in rows if (r["batch"] == "memory") == (batch == "memory")]
            away = ", one layer away" if migrated else ""
            left.plot(
                [r["rate"] for r in mine], [r["latency_s"] for r in mine], style, marker="o",
                color=colour, label=batches[batch] + away,
            )  # fmt: skip
    printed = {name: claim(f"cocoserve.fig3.{name}").value for name in _FIG3}
    left.plot([55, 55], [*printed.values()], **PUBLISHED, label="paper, all at home and one away")
    left.set_xlabel("requests at once")
    left.set_ylabel("mean latency (s)")
    left.legend()
    for migrated, colour in ((0, VERMILION), (1, ORANGE)):
        mine = rows_of(tables["fits"], migrated=migrated)
        right.bar(
            [k + 0.4 * migrated for k in range(len(mine))], [r["requests"] for r in mine], 0.4,
            color=colour, label="one layer away" if migrated else "all at home",
        )  # fmt: skip
        right.set_xticks(
            [k + 0.2 for k in range(len(mine))], [f"{r['hbm_bytes'] / 1e9:.1f} GB" for r in mine]
        )
    right.set_ylabel("requests that fit one card")
    right.set_ylim(0, 80)
    right.legend(loc="upper left")
    return finish(figure, "CoCoServe: batches up to the end of memory", caption)


_FIG3 = ("default_peak", "migrate_one")


def draw_failures(tables: Tables, caption: str) -> Figure:
    """Draw shares of failed and timely requests, by rate."""
    figure, (left, right) = canvas(9.0, 3.8, 2)
    for name, colour in _COLOURS.items():
        mine = rows_of(tables["failures"], system=name, batch="memory")
        if mine:
            x, y = [r["rate"] for r in mine], [r["requests_percent"] for r in mine]
            left.plot(x, y, marker="o", color=colour, label=f"{name}, all that waits")
        mine = rows_of(tables["in_time"], system=name)
        if mine:
            style = ":" if name.endswith("static") else "-"
            x, y = [r["rate"] for r in mine], [r["in_time_percent"] for r in mine]
            right.plot(x, y, style, marker="o", color=colour, label=name)
    for name, engine in (("oom_hft", "HFT"), ("oom_coco", "CoCoServe")):
        value = claim(f"cocoserve.fig11a.{name}").value
        mark = {**PUBLISHED, "markeredgecolor": _COLOURS[engine]}
        left.plot([55], [value], **mark, label=f"{engine}, paper")
    left.set_xticks([40, 45, 50, 55, 60])
    for axes, title in ((left, "requests that fail (%)"), (right, "requests in time (%)")):
        axes.set_xlabel("requests at once")
        axes.set_ylabel(title)
        axes.set_ylim(-4, 104)
        axes.legend()
    return finish(figure, "CoCoServe: requests out of memory, and requests in time", caption)


_COLOURS = {
    "HFT": VERMILION, "vLLM": GREEN, "CoCoServe": BLUE, "CoCoServe, static": BLUE,
}  # fmt: skip


def draw_rates(tables: Tables, caption: str) -> Figure:
    """Draw throughput and latency of an instance by rate."""
    figure, axes = canvas(10.0, 6.4, 2, 2)
    titles = {"throughput_rps": "requests a second", "latency_s": "mean latency (s)"}
    for row, model in enumerate(("13b", "70b")):
        for column, (name, title) in enumerate(titles.items()):
            panel = axes[2 * row + column]
            for system, colour in _COLOURS.items():
                mine = rows_of(tables["rates"], model=model, system=system)
                if mine:
                    x, y = [r["rate"] for r in mine], [r[name] for r in mine]
                    style = ":" if system.endswith("static") else "-"
                    panel.plot(x, y, style, marker="o", color=colour, label=system)
            panel.set_xlabel(f"requests at once, {model.upper()}")
            panel.set_ylabel(title)
            panel.set_ylim(bottom=0)
        axes[2 * row].legend()
    return finish(figure, "CoCoServe: throughput and latency of one instance", caption)


def draw_used(tables: Tables, caption: str) -> Figure:
    """Draw used memory beside printed values, and idle memory at low rates."""
    figure, (left, right) = canvas(9.0, 3.8, 2)
    used = rows_of(tables["used"])[:3]  # without static batches
    names = [r["system"] for r in used]
    left.bar(names, [r["used_gb"] for r in used], color=[_COLOURS[n] for n in names])
    ours = claim("cocoserve.fig9.used").value
    hft, vllm = (claim(f"cocoserve.fig9.waste_vs_{n}").value for n in ("hft", "vllm"))
    left.plot(names, [ours - hft, ours - vllm, ours], **PUBLISHED, label="paper")
    left.set_ylabel("memory in use (GB)")
    left.set_ylim(0, 52)
    left.legend(loc="upper left")
    for k, system in enumerate(("HFT", "vLLM")):
        mine = rows_of(tables["idle"], system=system)
        for name, hatch in (("memory", ""), ("compute", "//")):
            places = [3 * j + 1.2 * (name == "compute") + 0.5 * k for j in range(len(mine))]
            right.bar(
                places, [r[name] for r in mine], 0.5, color=_COLOURS[system], hatch=hatch,
                label=f"{system}, {name}",
            )  # fmt: skip
    rates = dict.fromkeys(r["rate"] for r in rows_of(tables["idle"]))
    right.set_xticks([0.85 + 3 * j for j in range(len(rates))], [f"{r} at once" for r in rates])
    right.set_ylabel("idle (%)")
    right.set_ylim(0, 105)
    right.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
    return finish(figure, "CoCoServe: memory in use, and idle resources", caption)


def draw_instances(tables: Tables, caption: str) -> Figure:
    """Draw throughput, latency and memory of sets of instances."""
    figure, axes = canvas(11.0, 4.2, 3)
    names = [r["system"] for r in rows_of(tables["instances"], load="low")]
    titles = {
        "throughput_rps": "requests a second", "latency_s": "mean latency (s)",
        "memory_mib": "memory (GiB)",
    }  # fmt: skip
    for panel, (name, title) in zip(axes, titles.items(), strict=True):
        scale = 1 / 1024 if name == "memory_mib" else 1.0
        for k, (load, alpha) in enumerate((("low", 0.45), ("high", 1.0))):
            mine = rows_of(tables["instances"], load=load)
            places = [j + 0.4 * k for j in range(len(mine))]
            colours = [BLUE if "CoCoServe" in system else VERMILION for system in names]
            panel.barh(places, [scale * r[name] for r in mine], 0.4, color=colours, alpha=alpha)
        panel.set_yticks([j + 0.2 for j in range(len(names))], names if panel is axes[0] else [])
        panel.invert_yaxis()
        panel.set_xlabel(title)
    loads = [Patch(color=INK, alpha=alpha, label=f"{load} load")
             for load, alpha in (("low", 0.45), ("high", 1.0))]  # fmt: skip
    axes[0].legend(handles=loads)
    return finish(figure, "CoCoServe: two and four instances", caption)


def draw_two_cards(tables: Tables, caption: str) -> Figure:
    """Draw tokens a second and seconds a step by sequences."""
    figure, axes = canvas(9.6, 4.2, 2)
    titles = {"tokens_per_s": "tokens a second", "step_s": "step (ms)"}
    rows = rows_of(tables["steps"])
    colours = (INK, SKY, BLUE, ORANGE, GREEN, VERMILION)
    styles = {"second instance": "--", "pipeline": ":"}  # distinct where curves overlap
    for panel, (name, title) in zip(axes, titles.items(), strict=True):
        scale = 1e3 if name == "step_s" else 1.0
        for way, colour in zip(dict.fromkeys(r["way"] for r in rows), colours, strict=True):
            mine = [r for r in rows if r["way"] == way]
            x, y = [r["rows"] for r in mine], [scale * r[name] for r in mine]
            style = styles.get(way, "-")
            panel.plot(x, y, style, marker="o", markersize=3, color=colour, label=way)
        panel.set_xlabel("sequences at once")
        panel.set_ylabel(title)
        panel.set_ylim(bottom=0)
    axes[0].legend()
    return finish(figure, "CoCoServe: copies of layers and other uses of two cards", caption)
