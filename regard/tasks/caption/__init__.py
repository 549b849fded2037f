"""Captions: a sentence for an image."""
