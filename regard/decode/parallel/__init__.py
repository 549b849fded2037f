"""Decodes all tokens at once: copies by fertility, Mask-Predict, CTC paths, candidates scored by prefix trees."""
