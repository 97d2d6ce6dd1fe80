"""Other people's clients, unmodified, against the embedded namespace: which scenarios of which release pass.

    python -m tests.interop.judges [--only NAME]   the releases of the list, the newest of each client and an older one
    python -m tests.interop.judges --newest        the releases that the registries have as the newest by now
    python -m tests.interop.judges --gateway       the same scenarios through `sbpair gateway`
    python -m tests.interop.judges --dark          JavaScript, Go and Java send through it while the primary goes dark

The clients are installed into a cache folder through their own package managers. `--write` keeps what the list's
releases found, with the date, for `sbpair emulator --compatibility`. A client whose toolchain is not installed is
skipped with that reason. What a client is asked to do stands in its folder here; dapr brings the conformance suites of
its own repository. A run of all takes some 20 minutes of two cores, so CI asks a sample only (test_judges.py).
"""
