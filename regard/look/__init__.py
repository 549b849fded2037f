"""Record the attention weights of any model, draw them, and read alignments from them."""

from .axes import FrameSegment, PatchSegment, QuerySegment, TextSegment, ViewAxis, image_pixels
from .draw import draw, draw_confusion
from .record import AttentionSite, Which, attention_sites, record_attention, record_layers
from .view import AttentionMap, AttentionView

__all__ = [
    "AttentionMap",
    "AttentionSite",
    "AttentionView",
    "FrameSegment",
    "PatchSegment",
    "QuerySegment",
    "TextSegment",
    "ViewAxis",
    "Which",
    "attention_sites",
    "draw",
    "draw_confusion",
    "image_pixels",
    "record_attention",
    "record_layers",
]
