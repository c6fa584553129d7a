"""Scenarios on a private Slurm: a real chain is hurt, and a table says what repaired it and at what cost."""
