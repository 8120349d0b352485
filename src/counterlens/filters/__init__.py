"""Which images of a pool to keep: opinions of classifiers, and rules over them."""
