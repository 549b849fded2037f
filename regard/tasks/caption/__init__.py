"""Captions: a sentence for an image, by a search or by known captions."""
