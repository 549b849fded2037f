"""Detection of objects in images: matching, losses, denoising, boxes in pixels of the original image."""
