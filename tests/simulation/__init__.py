"""The whole system in one process under simulated time, faults and schedules: `python -m tests.simulation --seed N`.

A seed decides everything: the workload, the faults and when they strike, the latency of every packet, and which process
runs next. The emulator, the runtime and the SDK's asynchronous client are the real ones; their clock, sockets, random
numbers and disks are not. The same seed gives the same history, told by its digest.
"""
