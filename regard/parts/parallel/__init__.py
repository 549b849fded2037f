"""Parts of models that write all tokens at once: CTC, fertilities, lengths. Decoding is in `decode/parallel`."""
