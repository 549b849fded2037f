"""Classification of images, with embeddings of images by the same model."""
