"""Loopback addresses for tests of ports that cannot be chosen."""

import os
import socket

import pytest


def own_address(*ports: int) -> str:
    """A loopback address on which this process may have these ports; others run the same tests beside it."""
    digits = os.getpid()
    for third in range(1, 20):
        host = f"127.{1 + digits % 250}.{digits // 250 % 250}.{third}"
        try:
            for port in ports:
                with socket.create_server((host, port)):
                    pass
        except PermissionError:
            pytest.skip(f"this user may not listen on {ports}")
        except OSError:
            continue
        return host
    pytest.skip("this system has one loopback address only, and its ports are taken")
