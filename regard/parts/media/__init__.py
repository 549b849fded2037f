"""Parts for images and sound: patches, a convolutional backbone, frames, 2-D attention, boxes and anchors.

What reads files or changes pixels belongs to `regard.processors`.
"""
