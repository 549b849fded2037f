"""Metrics: of labels and spans, and of texts against references."""
