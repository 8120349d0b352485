"""AutoAttack and its relatives: which attacks run, how they resume, how far to trust them."""
