"""Where images come from: one module for each kind of data spec."""
