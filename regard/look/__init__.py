"""Seeing attention: record it in any model, draw it, read alignments from it."""

from .draw import draw
from .record import recording
from .view import Gaze, View

__all__ = ["Gaze", "View", "draw", "recording"]
