"""More open descriptors than select(2) can name, as a rendezvous host of a large job has them."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator

import pytest

_MANY = 1100


@contextlib.contextmanager
def many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * _MANY:
        pytest.skip("this machine gives no process that many descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * _MANY), hard))
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(_MANY)]
    try:
        yield
    finally:
        for descriptor in kept:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
