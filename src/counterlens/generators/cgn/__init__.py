"""Counterfactual generative networks of digits: shape, texture and background apart."""
