"""Texts, images and sound in one model: what differs by modality, and the tags of tasks."""
