"""The C library in Python: readers, writers, requests, memory, and the errors of calls as exceptions."""
