"""What several workflows share: sessions, results, input pictures, generators, batches."""
