"""Runs requests: the generator, closed and open batches, prefill, CUDA graphs, ensembles, encoded sources.

What a step chooses belongs to `search`; decoding of all tokens at once to `parallel`.
"""
