"""Sample photographs of counterlens: pets of 37 breeds with masks."""
