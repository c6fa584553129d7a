"""Printed text of the Slurm programs to values, one module per program. Pure: nothing is run or read here."""
