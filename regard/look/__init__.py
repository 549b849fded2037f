"""Record the attention weights of any model, draw them, and read alignments from them."""

from .draw import draw, draw_confusion
from .record import record_attention
from .view import CrossAttentionView, SelfAttentionView

__all__ = ["CrossAttentionView", "SelfAttentionView", "draw", "draw_confusion", "record_attention"]
