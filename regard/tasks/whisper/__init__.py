"""Whisper, a family of the task `transcribe`: windows of 30 seconds, prompts, languages, timestamps, fallbacks."""
