"""Transcription by encoder–decoder models: segments of recordings, transcripts with times. Whisper is in `whisper`."""
