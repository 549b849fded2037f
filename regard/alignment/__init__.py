"""Word alignment of sentence pairs: the IBM model, symmetrization, fertilities, and the Pharaoh format.

Alignments from the attention of a model belong to `tasks/generate`; their error rate to `metrics`.
"""
