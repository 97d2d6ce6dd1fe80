"""The server's side of AMQP 1.0: ports, connections, sessions, links, tokens and budgets; no rule of a broker."""
