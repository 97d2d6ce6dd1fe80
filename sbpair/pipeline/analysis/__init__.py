"""What is in a backlog: counts, sizes, ages, sessions, duplicates, outages, from archived messages.

    units       which messages are read together: row groups of an archive's files, cut by queue and number; and who
                carries it out: this process, or Spark, which spreads the units over its tasks
    partials    what one unit says, and how such partial results become one: DuckDB over Arrow
    results     the tables that are shown, out of the merged partial results
    analyze     all of it together

A task never gives the JVM a row: it turns a unit into a few thousand rows of sums. Only what needs its like from other
units goes through a shuffle, once, by the hash of its key: sessions, and the hashes of message ids.
"""
