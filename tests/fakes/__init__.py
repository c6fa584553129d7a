"""Fakes with a memory, for the tests of every part."""
