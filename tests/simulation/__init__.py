"""The whole system in one process under simulated time, faults and schedules: `python -m tests.simulation --seed N`.

A seed decides everything: the workload, the faults and when they strike, the latency of every packet, and which process
runs next. The emulator, the runtime and the SDK's asynchronous client are the real ones; their clock, sockets, random
numbers and disks are not. The same seed gives the same history, told by its digest.

No history forks. All processes of a history, both brokers and the network between them live in the one process that
simulates them: a child would have copies of its own of the brokers, and nothing that it sends would arrive. What a fork
breaks is not simulated either: sockets that two processes read, locks and answers of threads that the child does not
have, a connection of SQLite that it may not even close. Real forks of real processes are tested for synchronous and
asynchronous clients, before and during an outage, in `tests/clients/test_processes.py`, for consumers in
`tests/clients/test_consumer.py` and for the journal in `tests/contract/test_journals.py`. A child begins with nothing
that its parent knew; what such a process may claim the histories judge at every process that is started after a crash.
"""
