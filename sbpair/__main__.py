"""`python -m sbpair`."""

from sbpair.cli.exit import main

if __name__ == "__main__":
    main()
