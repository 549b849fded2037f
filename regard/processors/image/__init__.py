"""Images to normalized pixels: reading files, bytes and arrays, resizing, augmentation, windows with boxes.

Files of many images (folders, archives, COCO) belong to `data/sources`; patches and backbones to `parts/media`.
"""
