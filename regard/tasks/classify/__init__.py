"""Classification of texts and pairs of texts: one label, several labels, or a number."""
