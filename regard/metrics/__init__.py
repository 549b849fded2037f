"""Scores of predictions against references: labels and spans, texts, transcripts, captions, boxes, retrieval.

A metric knows neither models nor files. Measures of what a model does inside belong to `measure`.
"""
