"""Images to normalized pixels: reading every form that a user may give, resizing, augmentation, windows with boxes.

Files of many images (folders, archives, COCO) belong to `data/sources`; patches and backbones to `parts/media`.
"""
