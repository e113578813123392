"""What is written to disk and read back: compiled steps and checkpoints, with suspicion."""
