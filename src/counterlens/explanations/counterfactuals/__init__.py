"""Counterfactuals: the change that makes an image a target class, in pixels or by a generator."""
