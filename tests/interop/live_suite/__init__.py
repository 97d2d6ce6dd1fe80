"""Runs azure-servicebus's own live tests, which its source distribution carries, against the embedded namespace.

    python -m tests.interop.live_suite [--only data|management|unit] [-k EXPRESSION] [--workers N]
    python -m tests.interop.live_suite --client gateway|drop-in|diverting ...

The second form puts a gateway between the tests' clients and their namespace, or sbpair's drop-in clients in the place
of the SDK's: with a primary that serves, or with every entity failed over and a syphon that brings each message from
the backlog to where the test waits for it. The data tests sleep for some 15 minutes in all.

Nothing of the SDK is kept in this repository: the source distribution of the installed release is fetched into a
private folder at each run. The tests find the emulator the way they would find the service: a name resolver in their
processes (shim/live_suite_plugin.py) leads `<namespace>.servicebus.windows.net` on the ports 443 and 5671 to it, and
its throwaway authority is the only one they trust. Neither the SDK nor the tests are changed.

Beyond the project's `test` extra the suite needs azure-common (an import), websocket-client (the synchronous client
over WebSocket) and opentelemetry-sdk with azure-core-tracing-opentelemetry (its tracing tests). They are installed into
the same private folder, never into the environment.

At the end each group of tests is counted, and each test that did not pass is named with a reason: the suite's own for
those it skips, else that of reasons.toml. A failure without a reason there makes the exit code 1.
"""
