"""Screening of pictures: near-duplicates, and what low-level statistics give away."""
