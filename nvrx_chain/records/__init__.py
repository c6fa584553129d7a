"""What is on disk: the paths of a run directory, the records in it, and how they are read and written."""
