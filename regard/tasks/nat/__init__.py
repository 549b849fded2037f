"""Non-autoregressive translation (all tokens at once): fertilities, Mask-Predict, CTC."""
