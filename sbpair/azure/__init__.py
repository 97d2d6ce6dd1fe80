"""The room that knows the Azure SDKs, and the only one.

connect          which adapter serves a namespace
messaging        Messaging: makes senders and receivers (`sender`, `receiver`) over `links` that reopen themselves
wire             the lossless hook, private attributes of the SDK, self test; `frames`: the frames it writes itself
payloads         what is read from and put around encoded messages; `browse`: complete browsing of partitioned entities
administration   NamespaceAdmin over the data plane; `management`: over Azure Resource Manager; `client`, `http`,
                 `calls`, `durations`: what both stand on
credentials      Entra ID credentials by name, one at a time
errors           the one table from foreign exceptions to ours
"""
