"""One array task inside the allocation: publish, gate, assemble, lease, fence, brake, drain, teardown."""
