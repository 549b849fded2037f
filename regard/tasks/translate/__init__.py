"""Translation: a target text for a source text, token by token; families that write all at once are in `nat`."""
