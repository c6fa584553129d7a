"""Where notices, metrics and the heartbeat go: one module per receiver."""
