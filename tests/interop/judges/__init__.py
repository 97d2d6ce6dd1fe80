"""Other people's clients, unmodified, against the embedded namespace: which scenarios of which release pass.

`python -m tests.interop.judges` installs the clients into a cache folder through their own package managers, runs them
all and prints a table; `--write` also keeps it for `sbpair emulator --compatibility`. A client whose toolchain is not
installed is skipped with that reason. What a client is asked to do stands in its folder here.
"""
