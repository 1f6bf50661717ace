"""Report of a reproduction: one self-contained HTML page with figures, claims and provenance."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from c2c.cost import load_constants
from experiments.claims import Improvement, Row, totals
from experiments.claims.fidelity import brief, shown_unit
from experiments.claims.nulls import beside
from experiments.figures.claims import CAPTION, claims_picture
from experiments.gpu.cli import RESULTS
from experiments.gpu.report import findings, read

__all__ = ["report_html"]

STYLE = """
:root{color-scheme:light dark;--ink:#1d1d1f;--soft:#6b6b70;--line:#dedee3;--back:#fff;
--card:#f6f6f8;--good:#00714f;--bad:#b3400a;--cool:#005a94}
@media(prefers-color-scheme:dark){:root{--ink:#ececf1;--soft:#a0a0a8;--line:#3a3a40;--back:#17171a;
--card:#202024;--good:#3ccf9e;--bad:#ff9a5c;--cool:#6cb8f0}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1240px;padding:2rem 1.2rem;background:var(--back);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.7rem;margin:0 0 .2rem}h2{font-size:1.15rem;margin:2.4rem 0 .6rem}
p{margin:.4rem 0}.soft{color:var(--soft)}a{color:var(--cool)}
.tiles{display:flex;flex-wrap:wrap;gap:.8rem;margin:1.2rem 0}
.tile{background:var(--card);border-radius:10px;padding:.8rem 1.1rem;min-width:9rem}
.tile b{display:block;font-size:1.5rem}
figure{margin:0}figure img{width:100%;height:auto;background:#fff;border:1px solid var(--line);
border-radius:8px}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:13px}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid var(--line);vertical-align:top}
th{position:sticky;top:0;background:var(--back)}
th{white-space:nowrap}td code,figcaption{overflow-wrap:anywhere}
td:has(>code){min-width:13rem}td:last-child{min-width:14rem}
@media(max-width:600px){body{padding:1rem .6rem}h1{font-size:1.35rem}.tile{flex:1 1 40%}
td,th{padding:.3rem .35rem}td code{font-size:11px}
td:has(>code){min-width:9rem}}
td.n{text-align:right;font-variant-numeric:tabular-nums}
code{font-size:12.5px}.yes{color:var(--good)}.no{color:var(--bad);font-weight:600}
details{margin:.8rem 0}summary{cursor:pointer}
"""


def report_html(
    out: Path,
    figures: Sequence[Mapping[str, Any]],
    rows: Sequence[Row],
    provenance: Mapping[str, Any],
    *,
    profile: str,
    improvements: Sequence[Improvement] = (),
    results: Path = RESULTS,
) -> str:
    """Return the page, with all pictures embedded.

    Args:
      out: folder with one folder for each figure.
      figures: name, title, caption, assumptions and table (`report`) of each figure.
      rows: rows of the fidelity table.
      provenance: see `c2c.runs.provenance`.
      profile: quick or full.
      improvements: gains of our rules over the paper's.
      results: folder of `make gpu`, with one folder for each device.
    """
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width,initial-scale=1'>",
        f"<title>c2c: reproduction, {escape(profile)}</title><style>{STYLE}</style></head><body>",
        f"<h1>Reproduction report</h1><p class='soft'>Profile {escape(profile)}; commit "
        f"{escape(str((provenance.get('git') or {}).get('commit'))[:12])}.</p>",
        _tiles(rows),
        _nulls(rows),
        _constants(),
        "<p><a href='#claims'>Claim by claim</a> · <a href='#misses'>Misses</a> · "
        "<a href='#improvements'>Gains of our rules</a> · <a href='#gpu'>On a GPU</a> · "
        "<a href='#provenance'>Provenance</a></p>",
        _picture(rows),
        _by_figure(rows),
        *(_figure(out, figure) for figure in figures),
        "<h2 id='claims'>Claim by claim</h2>",
        _table([r for r in rows if r.comparison is not None]),
        "<details><summary>Claims without a result yet, and constants of the papers' setups"
        f"</summary>{_table([r for r in rows if r.comparison is None])}</details>",
        "<h2 id='misses'>Misses and their reasons</h2>",
        _misses(rows),
        "<h2 id='improvements'>Gains of our rules</h2>",
        _improvements(improvements),
        "<h2 id='gpu'>On a GPU</h2>",
        *_gpu(results),
        "<h2 id='provenance'>Provenance</h2><div class='scroll'><table>",
        *(
            f"<tr><th>{escape(str(k))}</th><td><code>{escape(brief(v))}</code></td></tr>"
            for k, v in provenance.items()
        ),
        "</table></div></body></html>\n",
    ]
    return "\n".join(parts)


def _gpu(results: Path) -> list[str]:
    """Return a table of the kernels' aims for each measured device; without one, of open aims."""
    folders = sorted(path for path in results.glob("*") if path.is_dir())
    judged = [(folder.name, findings(read(folder))) for folder in folders]
    parts = []
    for device, found in judged or [
        ("no device yet: make gpu on a machine with one", findings({}))
    ]:
        parts.append(f"<p class='soft'>{escape(device)}</p><div class='scroll'><table>")
        for one in found:
            mark = {"pass": " class='yes'", "fail": " class='no'"}.get(one.status, "")
            parts.append(
                f"<tr><td>{escape(one.aim)}</td><td{mark}>{escape(one.status)}</td>"
                f"<td>{escape(one.measured)}</td></tr>"
            )
        parts.append("</table></div>")
    return parts


def _tiles(rows: Sequence[Row]) -> str:
    found = totals(rows)
    outside, inside = found["out_of_sample"], found["in_sample"]
    tiles = (
        (f"{outside['numbers_within_20']} of {outside['numbers']}", "numbers within 20%"),
        (f"{outside['trends_agree']} of {outside['trends']}", "trends in the printed direction"),
        (
            f"{inside['numbers_within_20']} of {inside['numbers']}",
            "in-sample numbers (not counted)",
        ),
        (
            f"{outside['robust']}, {outside['fragile']}, {outside['untried']}",
            "agreeing claims: robust, fragile, untried under other readings",
        ),
        (f"{found['explained']}", "claims that no figure can answer, with reasons"),
        (f"{found['not-yet']}", "claims not answered yet"),
        (f"{found['claims']}", "claims in all"),
    )
    cells = "".join(f"<div class='tile'><b>{a}</b>{escape(b)}</div>" for a, b in tiles)
    of_systems = "; ".join(
        f"{system}: {t['numbers_within_20']} of {t['numbers']} numbers, "
        f"{t['trends_agree']} of {t['trends']} trends"
        for system, t in found["out_of_sample_by_system"].items()
    )
    return f"<div class='tiles'>{cells}</div><p>Out of sample by paper: {escape(of_systems)}.</p>"


def _nulls(rows: Sequence[Row]) -> str:
    """Return a table of our results beside null models, by paper."""
    cells: list[tuple[object, ...]] = [
        (
            "out of sample", "numbers", "ours agree", "best constant of each unit", "no effect",
            "median error", "rank correlation",
        )
    ]  # fmt: skip
    for system, n in totals(rows)["null_models"].items():
        ranks = ", ".join(f"{unit} {r:.2f}" for unit, r in n["rank_correlation"].items())
        error = "" if n["median_error"] is None else f"{n['median_error']:.0%}"
        cells.append(
            (
                system, n["numbers"], n["agree"], n["constant_agree"], n["no_effect_agree"], error,
                ranks,
            )
        )  # fmt: skip
    return _cells(cells)


def _by_figure(rows: Sequence[Row]) -> str:
    """Return a table that counts answered claims by figure and state."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.comparison is not None:
            system, figure = row.claim.id.split(".")[:2]
            groups.setdefault((system, figure), []).append(row)
    cells: list[tuple[object, ...]] = [
        (
            "paper", "figure", "predicted", "agree", "robust", "fragile", "untried",
            "best constant", "calibrated or given", "identities", "repeats",
        )
    ]  # fmt: skip
    for (system, figure), mine in groups.items():
        status = Counter(row.status for row in mine)
        stand = Counter(row.standing for row in mine)
        unseen = [row for row in mine if row.status == "out-of-sample"]
        cells.append(
            (
                system, figure, len(unseen), sum(bool(row.agrees) for row in unseen),
                stand["robust"], stand["fragile"], stand["untried"],
                beside(unseen)["constant_agree"], status["in-sample"], status["identity"],
                status["repeat"],
            )
        )  # fmt: skip
    return (
        "<h2 id='by-figure'>By figure</h2><p class='soft'>Robust: agrees under every reading of "
        "what the paper leaves open (readings.yaml); fragile: under ours and not under another; "
        "untried: not all were computed, or none are written down.</p>" + _cells(cells)
    )


def _cells(rows: Sequence[Sequence[object]]) -> str:
    """Return a table; the first row is its header."""
    head, *body = (
        "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * (len(rows) - 1)], rows, strict=True)
    )
    lines = "".join(f"<tr>{row}</tr>" for row in body)
    return (
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{lines}</tbody></table></div>"
    )


def _picture(rows: Sequence[Row]) -> str:
    """Return the picture of all printed numbers against ours."""
    picture = base64.b64encode(claims_picture(rows)).decode()
    return (
        "<h2 id='picture'>Printed numbers and ours</h2><figure>"
        f"<img alt='Printed numbers and ours' src='data:image/webp;base64,{picture}' "
        f"style='max-width:760px'><figcaption class='soft'>{escape(CAPTION)}"
        "</figcaption></figure>"
    )


def _constants() -> str:
    """Return a line on the cost model's constants and their sources."""
    sources = load_constants().sources.values()
    fitted = [s for s in sources if s.kind == "fitted" and s.claims]
    claims = {name for s in fitted for name in s.claims}
    kinds = Counter(s.kind for s in sources)
    return (
        f"<p>GH200's cost model has {len(sources)} constants: {len(fitted)} fitted to "
        f"{len(claims)} printed numbers, {kinds['fitted'] - len(fitted)} to public measurements, "
        f"{kinds['measured']} measured, {kinds['carried']} carried over from the H100's fits, "
        f"{kinds['datasheet']} of datasheets, {kinds['assumption']} assumed. Claims that a "
        "constant, a structure or a setting was chosen with in view are in-sample.</p>"
    )


def _figure(out: Path, figure: Mapping[str, Any]) -> str:
    name = str(figure["name"])
    picture = base64.b64encode((out / name / f"{name}_bare.webp").read_bytes()).decode()
    files = ", ".join(
        f"<a href='{escape(name)}/{escape(name)}.{kind}'>{kind.upper()}</a>"
        for kind in ("svg", "pdf", "png")
    )
    return (
        f"<h2 id='{escape(name)}'>{escape(str(figure['title']))}</h2><figure>"
        f"<img alt='{escape(str(figure['title']))}' src='data:image/webp;base64,{picture}'>"
        f"<figcaption class='soft'>{escape(str(figure['caption']))} "
        f"{files}</figcaption></figure>"
        f"{_assumptions(figure.get('assumptions') or ())}"
        f"{_numbers(figure.get('report') or ())}"
    )


def _assumptions(sentences: Sequence[str]) -> str:
    """Return a folded list of the assumptions behind a figure."""
    if not sentences:
        return ""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<details><summary>Assumptions</summary><ul>{items}</ul></details>"


def _numbers(rows: Sequence[Sequence[str]]) -> str:
    """Return the table below a figure, folded; the first row is its header."""
    if not rows:
        return ""
    return f"<details><summary>Numbers</summary>{_cells(rows)}</details>"


def _table(rows: Sequence[Row]) -> str:
    head = "".join(
        f"<th>{h}</th>"
        for h in ("claim", "published", "ours", "ratio", "agrees", "sample", "link", "note")
    )
    return (
        f"<div class='scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(_row(r) for r in rows)}</tbody></table></div>"
    )


def _misses(rows: Sequence[Row]) -> str:
    """Return a table of out-of-sample misses with the reason of each."""
    body = []
    for row in (r for r in rows if r.is_miss):
        plain = row.as_dict()
        why = escape(row.why) or "<span class='no'>no reason is known</span>"
        body.append(
            f"<tr><td><code>{escape(row.claim.id)}</code></td>"
            f"<td>{escape(brief(plain['published']))}</td><td>{escape(brief(plain['ours']))}</td>"
            f"<td>{why}</td></tr>"
        )
    head = "".join(f"<th>{h}</th>" for h in ("claim", "published", "ours", "reason"))
    return (
        "<p class='soft'>Out of sample.</p><div class='scroll'><table>"
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def _improvements(improvements: Sequence[Improvement]) -> str:
    """Return a table of our rules against the paper's on the same requests."""
    if not improvements:
        return "<p class='soft'>No figure here compares our rules with a paper's.</p>"
    heads = ("what", "ours", "against", "ours", "against", "gain", "verdict")
    colour = {"better": "yes", "worse": "no"}
    body = []
    for one in improvements:
        *cells, verdict = (escape(cell) for cell in one.cells())
        kind = colour.get(verdict.split(",")[0], "soft")
        body.append(
            f"<tr>{''.join(f'<td>{c}</td>' for c in cells)}<td class='{kind}'>{verdict}</td></tr>"
        )
    return (
        "<p class='soft'>The same requests under both. Median and range over seeds; better or "
        "worse only if all seeds agree.</p><div class='scroll'><table><thead><tr>"
        f"{''.join(f'<th>{h}</th>' for h in heads)}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _row(row: Row) -> str:
    plain = row.as_dict()
    agrees = {True: "<td class='yes'>yes</td>", False: "<td class='no'>no</td>", None: "<td></td>"}
    ratio = "" if plain["ratio"] is None else f"{plain['ratio']:.2f}"
    published = f"{plain['qualifier']} {brief(plain['published'])} {shown_unit(row.claim)}".strip()
    ours = "" if plain["ours"] is None else brief(plain["ours"])
    seeds = row.result.by_seed if row.result else ()
    if len(seeds) > 1 and all(isinstance(v, int | float) for v in seeds):
        ours += f" ({brief(min(seeds))} to {brief(max(seeds))})"
    says = escape(plain["says"], quote=True)
    return (
        f"<tr><td title='{says}'><code>{escape(plain['id'])}</code></td>"
        f"<td>{escape(published)}</td><td>{escape(ours)}</td><td class='n'>{ratio}</td>"
        f"{agrees[plain['agrees']]}<td>{plain['status']}</td>"
        f"<td>{escape(plain['link_variant'])}</td><td>{escape(plain['note'])}</td></tr>"
    )
