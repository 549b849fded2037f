"""Language modeling: the loss of running text, generation from prompts, log-probabilities of known texts."""
