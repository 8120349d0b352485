"""Architectures that are built here."""
