"""Text to text, as in T5: a prefix names the task of every pair."""
