"""Raw examples of a task: pairs, labeled and tagged texts, documents, images, boxes, captions, recordings.

Here too: mixtures of several sources and the division into training and validation. Encoding belongs to `datasets`.
"""
