"""What is in a backlog: counts, sizes, ages, sessions, duplicates, outages, from archived messages.

    question    what is asked: the moment, the limits, the rate
    partials    the roll-up everything is computed from: its columns, and how Spark SQL makes it of any DataFrame
    scan        the same roll-up made over the files of an archive: which task reads what
    rolling     what such a task does, a whole column at a time
    columns_at_once, fingerprints   arithmetic on whole columns, for `rolling`
    buckets     numbers in buckets of at most 6 % width, the same in SQL and on columns
    results     DataFrame -> DataFrame: the tables that are shown
    analyze     all of it together

The roll-up has two makers because one is general and the other fast: on one machine Spark shuffles the messages
themselves where the scan adds them up in its tasks and shuffles only what it found.
"""
