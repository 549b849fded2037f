"""Processors between raw data and tensors, saved beside the weights: tokenizers, label sets."""
