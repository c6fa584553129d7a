"""How each in-job launcher is called: command lines and environments, one module per launcher. Pure."""
