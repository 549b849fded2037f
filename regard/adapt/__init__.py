"""Passes over a finished model, found by module type: they work on every family, also on those not yet written."""
