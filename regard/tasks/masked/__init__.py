"""Masked language modeling, BERT's pre-training: the predictor fills in masks."""
