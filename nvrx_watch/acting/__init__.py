"""What the watcher does to a chain, and what it never does. Nothing here happens without `--act`."""
