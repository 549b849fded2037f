"""Word alignment of sentence pairs: the IBM model, symmetrization, and the Pharaoh format."""
