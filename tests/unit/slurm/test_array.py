from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.array import ArraySpec, is_task_spec, parse_array_spec, render_array_spec


@pytest.mark.parametrize(
    ("text", "indices", "throttle"),
    [
        ("0-4%2", (0, 1, 2, 3, 4), 2),
        ("1_[2-4%2]", (2, 3, 4), 2),
        ("56_[1%1]", (1,), 1),
        ("[0-3,5,9:2%4]", (0, 1, 2, 3, 5, 9), 4),
        ("0-9:3", (0, 3, 6, 9), None),
        ("1_2", (2,), None),
        ("7", (7,), None),
        ("5,3,3,1-2%9", (1, 2, 3, 5), 9),
        ("0-4%0", (0, 1, 2, 3, 4), None),
        ("0-4%", (0, 1, 2, 3, 4), None),
    ],
)
def test_a_whole_list_is_read(text: str, indices: tuple[int, ...], throttle: int | None) -> None:
    assert parse_array_spec(text) == ArraySpec(indices=indices, throttle=throttle, complete=True)


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("17_[0,12,15,36,3", (0, 12, 15, 36)),
        ("28_[1-2,4,7-8,...", (1, 2, 4, 7, 8)),
        ("0,3,69,7...%5", (0, 3, 69)),
        ("4_[1", ()),
        ("4_[", ()),
    ],
)
def test_a_list_that_slurm_cut_short_is_at_least_these(text: str, indices: tuple[int, ...]) -> None:
    parsed = parse_array_spec(text)
    assert parsed is not None
    assert (parsed.indices, parsed.complete) == (indices, False)


@pytest.mark.parametrize("text", ["N/A", "", " N/A "])
def test_a_job_that_is_no_array_has_no_list(text: str) -> None:
    assert parse_array_spec(text) is None


@pytest.mark.parametrize(
    "text", ["x", "3-1", "-1", "1-", "1,,2", "0-99999999", "0-4000001", "0-4:0", "%", "٣", "(null)"]
)
def test_text_that_is_no_list_is_never_no_tasks(text: str) -> None:
    parsed = parse_array_spec(text)
    assert parsed is not None
    assert not parsed.complete


@given(st.text(alphabet="0123456789_[]-,:%. N/A", max_size=30) | st.text(max_size=30))
def test_no_text_breaks_the_parser_of_lists(text: str) -> None:
    parsed = parse_array_spec(text)
    assert parsed is None or list(parsed.indices) == sorted(set(parsed.indices))


@given(
    st.sets(st.integers(0, 4_000_000) | st.integers(0, 30), min_size=1, max_size=60),
    st.none() | st.integers(1, 500),
)
def test_what_is_rendered_is_read_back(indices: set[int], throttle: int | None) -> None:
    text = render_array_spec(indices, throttle)
    for shown in (text, f"123_[{text}]"):
        assert parse_array_spec(shown) == ArraySpec(indices=tuple(sorted(indices)), throttle=throttle, complete=True)


@given(st.sets(st.integers(0, 2000), min_size=1, max_size=60), st.integers(1, 60))
def test_a_cut_list_shows_no_task_that_is_not_there(indices: set[int], length: int) -> None:
    text = f"9_[{render_array_spec(indices)}]"
    parsed = parse_array_spec(text[: max(3, len(text) - length)])
    assert parsed is not None
    assert set(parsed.indices) <= indices
    assert not parsed.complete


@pytest.mark.parametrize("indices", [[], [-1, 2]])
def test_nothing_cannot_be_rendered(indices: list[int]) -> None:
    with pytest.raises(ValueError, match="no array indices"):
        render_array_spec(indices)


@pytest.mark.parametrize(
    ("text", "is_spec"),
    [
        ("123", True),
        ("123_4", True),
        ("123_[2-4,7]", True),
        ("123_[]", False),
        ("", False),
        ("--user=root", False),
        ("123 4", False),
        ("123\n4", False),
        ("123_", False),
        ("١٢٣", False),
    ],
)
def test_only_ids_name_tasks(text: str, is_spec: bool) -> None:
    assert is_task_spec(text) == is_spec
