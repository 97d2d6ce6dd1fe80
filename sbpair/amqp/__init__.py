"""AMQP 1.0 values, frames and message sections, bytes to typed values and back. Pure: standard library only.

types          what a decoded value is; `describe` makes a composite, `same` compares strictly; the errors
decoding       the table from constructor byte to value, and its bounds for hostile input
encoding       the tables from value to its shortest form
performatives  the composites of frames and delivery states, and typed access to their fields
frames         cutting a stream into frames and putting frames together, for both sides of the wire
sections       where the sections of a message lie; reading one, changing one, entry by entry, building a message
"""
