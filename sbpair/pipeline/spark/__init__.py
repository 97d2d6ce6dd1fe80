"""Spark itself: which Java it runs on, how its JVM is started and sized, its session, how far its jobs are."""
