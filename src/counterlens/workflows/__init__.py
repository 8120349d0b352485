"""Workflows: verbs that compose the parts and write a run folder."""
