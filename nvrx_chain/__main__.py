"""`python -I -m nvrx_chain`: the command by module, as the batch script starts it."""

from nvrx_chain.cli import main

if __name__ == "__main__":
    main()
