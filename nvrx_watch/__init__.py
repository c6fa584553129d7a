"""The out-of-job watcher of a chain. It reads the run directory and Slurm; it imports nvrx_chain's records only."""
