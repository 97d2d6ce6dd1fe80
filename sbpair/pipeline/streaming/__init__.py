"""Queues as a stream: offsets, reader and writer of `readStream` and `writeStream`."""
