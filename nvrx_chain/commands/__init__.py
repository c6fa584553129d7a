"""The click commands, one module per room; nvrx_chain.cli imports each only when it is called."""
