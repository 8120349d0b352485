"""Which images of a pool to keep: what classifiers say about it, and rules over what they said."""
