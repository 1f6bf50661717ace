"""Pictures of the report."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote
from xml.etree import ElementTree as ET

from PIL import Image

from experiments.figures.style import CAPTION_ID, TITLE_ID

__all__ = ["Picture", "picture_of", "without_texts"]

_SVG: Final = "{http://www.w3.org/2000/svg}"
_MARGIN_POINTS: Final = 3.0  # above and below the axes
_THUMBNAIL_PIXELS: Final = 440  # twice the widest cell of the grid, for sharp screens
_FONTS: Final = "'DejaVu Sans',Verdana,sans-serif"  # phones and Macs have no DejaVu
# Characters that an attribute in double quotes may have as they are; most of an SVG.
_PLAIN: Final = " !'()*+,-./:;<=>?@[]^_{|}~$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Picture of a page: data URIs, width and height in points."""

    svg: str
    width: float
    height: float
    thumbnail: str = ""


def picture_of(folder: Path, name: str) -> Picture:
    """Return a run folder's picture `name`.svg and `name`.png."""
    svg, (_, top, width, height), whole = without_texts((folder / f"{name}.svg").read_bytes())
    with Image.open(folder / f"{name}.png") as stored:
        scale = stored.height / whole
        box = (0, round(top * scale), stored.width, round((top + height) * scale))
        small = stored.convert("RGB").crop(box)
    small.thumbnail((_THUMBNAIL_PIXELS, _THUMBNAIL_PIXELS), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, format="WEBP", quality=80)
    thumbnail = base64.b64encode(buffer.getvalue()).decode()
    return Picture(
        svg=svg, width=width, height=height, thumbnail=f"data:image/webp;base64,{thumbnail}"
    )


def without_texts(svg: bytes) -> tuple[str, tuple[float, float, float, float], float]:
    """Return an SVG without `finish`'s title and caption."""
    for prefix, address in (("", "2000/svg"), ("xlink", "1999/xlink")):
        ET.register_namespace(prefix, f"http://www.w3.org/{address}")
    root = ET.fromstring(svg)  # noqa: S314 (written by this program)
    _, _, width, whole = (float(part) for part in root.attrib["viewBox"].split())
    cut = {TITLE_ID: 0.0, CAPTION_ID: 0.0}
    for parent in [*root.iter()]:
        for child in [*parent]:
            name, _, points = child.get("id", "").rpartition("-")
            if name in cut:
                cut[name] = float(points) - _MARGIN_POINTS
                parent.remove(child)
            elif child.tag == f"{_SVG}metadata":
                parent.remove(child)
            elif "d" in child.attrib:  # a hundredth of a point is enough
                short = re.sub(r"(\.\d\d)\d+", r"\1", child.attrib["d"])
                child.set("d", " ".join(short.split()))
    top, height = cut[TITLE_ID], whole - sum(cut.values())
    root.set("viewBox", f"0 {top:g} {width:g} {height:g}")
    root.set("width", f"{width:g}pt")
    root.set("height", f"{height:g}pt")
    text = re.sub(r">\s+<", "><", ET.tostring(root, encoding="unicode"))
    text = text.replace("'DejaVu Sans'", _FONTS)
    return f"data:image/svg+xml,{quote(text, safe=_PLAIN)}", (0.0, top, width, height), whole
