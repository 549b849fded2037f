"""Classification of images, and their embeddings."""
