"""Runs requests: the generator, closed and open batches, prefill, CUDA graphs, ensembles, encoded sources.

The choice of tokens belongs to `search`; non-autoregressive decoding to `parallel`.
"""
