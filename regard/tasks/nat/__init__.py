"""Translation by families that write all tokens at once: fertilities, Mask-Predict, CTC."""
