"""Run configuration: `schema` (what can be set), `merge` (layers of settings), `run` (a resolved run)."""
