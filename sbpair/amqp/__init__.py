"""AMQP 1.0 values and message sections, bytes to typed values and back. Pure: standard library only.

types       what a decoded value is; `describe` makes a composite, `same` compares strictly; the errors
decoding    the table from constructor byte to value, and its bounds for hostile input
encoding    the tables from value to its shortest form
sections    where the sections of a message lie; reading one, changing one, entry by entry, building a message
"""
