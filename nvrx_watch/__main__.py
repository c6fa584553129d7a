"""`python -m nvrx_watch`: the command by module."""

from __future__ import annotations

from nvrx_watch.cli import main

if __name__ == "__main__":
    main()
