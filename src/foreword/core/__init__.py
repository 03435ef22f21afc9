"""The prefix cache: hashing, block pool, events. Standard library only, synchronous, no clock, no I/O, no globals."""
