"""What an operator does with a chain: look at it, read its logs, hold and release it, stop it for good."""
