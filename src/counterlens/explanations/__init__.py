"""Explanations: one method per file."""
