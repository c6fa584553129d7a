"""Chains of Slurm job-array generations that keep one training job alive."""

__version__ = "0.1.0"
