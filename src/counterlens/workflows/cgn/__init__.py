"""CGN: counterfactual generative networks of digits.

`settings` and `networks` define the training, `train` runs several seeds side by side, `masks`
checks that masks stay digits, `sheets` and `figures` draw, `generate` makes data, `evaluate` trains
classifiers on it, `measure` asks what they look at.
"""
