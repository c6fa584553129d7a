"""Numbers of bytes in the unit that suits them."""

from __future__ import annotations

import pytest

from nvrx_chain.sizes import render_size


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (5 << 40, "5.0 TiB")])
def test_a_size_has_the_unit_that_suits_it(size: int, text: str) -> None:
    assert render_size(size) == text
