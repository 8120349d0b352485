"""What units and components of a network respond to."""
