"""Texts, images and sound in one model: the modalities, and the tags of tasks."""
