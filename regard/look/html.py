"""An attention view as one self-contained HTML page, and as JSON."""

import base64
import html
import io
import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from ..files import JsonObject
from .axes import AxisSegment, FrameSegment, PatchSegment, Pixels, QuerySegment, ViewAxis

if TYPE_CHECKING:
    from .view import AttentionMap, AttentionView

THUMBNAIL = 48  # rows and columns of the overview of a head
FINEST = 0.001  # step between two values
LEVELS = 127  # steps of the range of a head: 255 cost a quarter more bytes and look the same
RESOLUTION = 5  # of a value: at least this many steps make up the weight 1 / keys of a uniform head
DENSE = 2**24  # a page with at most this many weights has all of them; a larger one, the largest of each query
LARGEST = 32  # weights of a query on a large page
SPECTROGRAM = 2000  # columns of the picture of a spectrogram, at most
PHOTO = 2**17  # pixels of an image from which it is stored as JPEG

THREADS = min(os.cpu_count() or 1, 8)  # that compress

Bytes = npt.NDArray[np.uint8]


def page(view: "AttentionView", layer: object = None, head: object = None, kind: str | None = None) -> str:
    """The page; it first shows `layer`, `head` and `kind`."""
    parts = {name: files(__package__).joinpath("page", name).read_text("utf-8") for name in PAGE_FILES}
    data, blobs = _page_data(view)
    data["first"] = {"layer": layer, "head": head, "kind": kind, "cross": None}
    if "cross" in view.kinds:  # what the page begins with if none is given
        data["first"]["cross"] = {"layer": view.layer_map(kind="cross").layer, "head": view.first_head(None, "cross")}
    text = parts["page.html"].replace("/*STYLE*/", parts["page.css"])
    text = text.replace("/*SCRIPT*/", "\n".join(parts[name] for name in PAGE_FILES if name.endswith(".js")))
    text = text.replace("{{title}}", html.escape(f"{view.title} · attention" if view.title else "attention"))
    packed = "\n".join(f'<script type="text/plain" id="b{i}">{blob}</script>' for i, blob in enumerate(blobs))
    # Last, so that nothing in a user's text is replaced. In JSON, "<" occurs in strings only.
    return text.replace(
        "<!--DATA-->", json.dumps(data, ensure_ascii=False).replace("<", "\\u003c") + "</script>" + packed
    )


PAGE_FILES = ("page.html", "page.css", "core.js", "parts.js", "views.js", "main.js")


def notebook_frame(text: str) -> str:
    """The page in a sandboxed frame of a notebook, which can only run its scripts."""
    style = "width:100%;height:680px;border:0;border-radius:8px"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(text)}"></iframe>'


def json_view(view: "AttentionView", maps: "list[AttentionMap]", heads: list[int] | None) -> JsonObject:
    """The weights of these maps and heads (from 0), and the labels of their axes."""
    return {
        "title": view.title,
        "axes": {name: {"name": axis.name, "labels": axis.labels} for name, axis in view.axes.items()},
        "logprobs": list(view.logprobs),
        "decision": None if view.decision is None else view.decision.record(),
        "maps": [
            {
                "path": attention.site.path,
                "kind": attention.kind,
                "layer": attention.layer,
                "note": attention.site.note,
                "queries": attention.queries.labels,
                "keys": attention.keys.labels,
                "heads": {
                    str(number + 1): _rounded(attention.weights[number])
                    for number in (range(len(attention.weights)) if heads is None else heads)
                },
            }
            for attention in maps
        ],
    }


def _rounded(weights: Tensor) -> list[list[float]]:
    rows: list[list[float]] = np.round(weights.double().numpy(), 6).tolist()
    return rows


# --- the data of the page --------------------------------------------------------------------------------------------


def _page_data(view: "AttentionView") -> tuple[dict[str, Any], list[str]]:
    """The data of the page, and its compressed maps: one for every head, and overviews of all."""
    axes: list[ViewAxis] = []
    blobs: list[str] = []
    maps: list[dict[str, Any]] = []
    sources: list[tuple[str, int, Tensor, ViewAxis, ViewAxis, str]]
    sources = [(m.kind, m.layer, m.weights, m.queries, m.keys, m.site.note) for m in view.maps]
    sources += [("rollout", i + 1, weights[None], axis, axis, "") for i, weights, axis in view.rollouts()]
    most = LARGEST if sum(source[2].numel() for source in sources) > DENSE else None
    thumbnails = []
    pool = ThreadPoolExecutor(THREADS)
    for kind, layer, weights, queries, keys, note in sources:
        for axis in (queries, keys):
            if axis not in axes:
                axes.append(axis)
        values, low, step = quantize(weights, most)
        thumbnails.append(_thumbnails(values).tobytes())
        first = len(blobs)
        blobs += pool.map(compress, [head.tobytes() for head in values])  # zlib releases the GIL
        maps.append(
            {
                "kind": kind, "layer": layer, "heads": len(values), "note": note, "blob": first,
                "queries": axes.index(queries), "keys": axes.index(keys), "low": low, "step": step,
            }
        )  # fmt: skip
    pool.shutdown()
    blobs.append(compress(b"".join(thumbnails)))
    data = {
        "title": view.title,
        "axes": [_axis_data(axis) for axis in axes],
        "maps": maps,
        "counts": dict(view.counts),
        "largest": most,
        "leftOut": dict(view.left_out),
        "logprobs": [round(logprob, 4) for logprob in view.logprobs],
        "decision": None if view.decision is None else view.decision.record(),
        "thumbnail": THUMBNAIL,
        "overview": len(blobs) - 1,
    }
    return data, blobs


def quantize(weights: Tensor, most: int | None = None) -> tuple[Bytes, list[float], list[float]]:
    """Weights (heads, queries, keys) in 8 bits: value = low + step · byte, with one low and one step for each head.

    A step is 1/LEVELS of the range of the head, but not finer than FINEST, or 1 / (RESOLUTION · keys) if there are many
    keys: small differences between small weights are invisible, and cost most of the size. With `most`, only that many
    of the largest weights of each query remain.
    """
    weights = weights.float()
    if most is not None and most < weights.size(2):
        top = weights.topk(most, -1)
        weights = torch.zeros_like(weights).scatter_(-1, top.indices, top.values)
    flat = weights.flatten(1)
    low, high = flat.amin(1).clamp(max=0), flat.amax(1)
    span = (high - low).clamp(min=1e-6)
    finest = torch.minimum(span / 16, torch.tensor(min(1 / (RESOLUTION * max(weights.size(2), 1)), FINEST)))
    step = torch.maximum(span / LEVELS, finest)
    values = ((weights - low[:, None, None]) / step[:, None, None]).round().clamp(0, 255)
    return values.to(torch.uint8).numpy(), [float(f"{x:.6g}") for x in low], [float(f"{x:.6g}") for x in step]


def _thumbnails(values: Bytes) -> Bytes:
    """The largest value of each area: (heads, rows, columns), at most THUMBNAIL of both."""
    maps = torch.from_numpy(values).float()
    size = min(maps.size(1), THUMBNAIL), min(maps.size(2), THUMBNAIL)
    pooled: Bytes = F.adaptive_max_pool2d(maps[None], size)[0].to(torch.uint8).numpy()
    return pooled


def compress(data: bytes) -> str:
    """Compress data for a browser, which decodes base64 and then DecompressionStream("deflate").

    Weights that vary like noise have no repeated parts: then Huffman codes alone are an eighth smaller.
    """
    coder = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
    ways = zlib.compress(data, 7), coder.compress(data) + coder.flush()
    return base64.b64encode(min(ways, key=len)).decode("ascii")


def _axis_data(axis: ViewAxis) -> JsonObject:
    return {"name": axis.name, "ended": axis.ended, "segments": [_segment_data(segment) for segment in axis.segments]}


def _segment_data(segment: AxisSegment) -> JsonObject:
    data: dict[str, Any] = {"kind": segment.kind, "count": len(segment.labels)}
    if isinstance(segment, PatchSegment):
        return data | {"rows": segment.rows, "columns": segment.columns, "image": _image(segment.image)}
    if isinstance(segment, FrameSegment):
        times = {"step": segment.step, "first": segment.first}
        return data | times | {"image": _spectrogram(segment.spectrogram)}
    data["labels"] = list(segment.labels)
    if isinstance(segment, QuerySegment):
        boxes = [[round(coordinate, 4) for coordinate in box] for box in segment.boxes]
        scores = [round(score, 4) for score in segment.scores]
        data |= {"scores": scores, "boxes": boxes, "image": _image(segment.image)}
    return data


def _image(pixels: Pixels) -> JsonObject:
    """An image as a data URL."""
    from PIL import Image

    height, width = pixels.shape[:2]
    format = "jpeg" if height * width >= PHOTO else "png"
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, format, **({"quality": 88} if format == "jpeg" else {"optimize": True}))
    code = base64.b64encode(out.getvalue()).decode("ascii")
    return {"width": width, "height": height, "url": f"data:image/{format};base64,{code}"}


def _spectrogram(frames: npt.NDArray[np.float32]) -> JsonObject | None:
    """A picture of loudness in gray, low frequencies below. Many frames may be silent padding."""
    if not frames.size:
        return None
    skip = -(-len(frames) // SPECTROGRAM)
    low, high = np.percentile(frames, (2, 99.5))
    gray = np.clip((frames[::skip] - low) / max(high - low, 1e-6), 0, 1).T[::-1]
    return _image(np.repeat(np.rint(255 * gray).astype(np.uint8)[..., None], 3, 2))
