"""Remedies that train the whole network further from its own weights, each with its placebo.

`recipes` names the settings, `train` does it and reads the features of the result.
"""
