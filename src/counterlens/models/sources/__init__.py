"""Where classifiers come from: one module for each kind of model spec."""
