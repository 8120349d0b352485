"""Generators: where images can come from."""
