"""The decisions of sbpair: pure values and sans-IO machines, standard library only.

Nothing here reads a clock, opens a socket, draws a random number or logs: time comes in as an argument, the next
deadline and the I/O that is wanted go out.
"""
