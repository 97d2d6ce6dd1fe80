"""`python -m sbpair`."""

from sbpair.cli.main import main

if __name__ == "__main__":
    main()
