"""The in-job launcher: restarts the ranks of a generation inside its allocation."""
