"""Settings of the property tests here."""

from hypothesis import settings

# What is slow on a busy machine is not wrong.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
