"""Joint embeddings of images, recordings or texts and the texts that belong to them; zero-shot labels; retrieval."""
