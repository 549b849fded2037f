"""Record the attention weights of any model, arrange them as views, and draw them: pictures and the page.

What a view means for a task belongs to the task; measures of heads and attributions to `measure`.
"""

from .axes import FrameSegment, PatchSegment, QuerySegment, TextSegment, ViewAxis
from .draw import draw, draw_confusion
from .record import AttentionSite, Which, attention_sites, record_attention, record_layers
from .rollout import rollout
from .view import AttentionMap, AttentionView, check_view_path

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
    "check_view_path",
    "draw",
    "draw_confusion",
    "record_attention",
    "record_layers",
    "rollout",
]
