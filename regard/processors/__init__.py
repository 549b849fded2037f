"""Everything between raw data and tensors that is saved beside the weights: tokenizers, label sets."""
