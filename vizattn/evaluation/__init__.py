"""Judges: how well maps point, and how far they can be trusted."""
