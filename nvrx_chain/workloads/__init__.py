"""Training programs that a chain can run as they stand: `mock_gpt`, a small GPT with real checkpoints and faults."""
