"""Seeing attention: record it in any model, draw it, read alignments from it."""

from .draw import draw
from .record import recording
from .view import CrossAttentionView, SelfAttentionView

__all__ = ["SelfAttentionView", "CrossAttentionView", "draw", "recording"]
