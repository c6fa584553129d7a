"""Reading the files of a chain, fast and safely: in a child process that may hang, and only what is new."""
