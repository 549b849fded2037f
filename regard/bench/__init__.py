"""Figures beside a peer, in one run: `python -m regard.bench.translate`."""
