"""Metrics of labels and spans (labels), and of texts against references (text)."""
