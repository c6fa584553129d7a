from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.slurm.parse.rows import split_rows, unguessable_separator

COLUMNS = ("id", "state", "name")


def test_free_text_in_the_last_column_may_hold_the_separator() -> None:
    rows = split_rows("1|R|a|b|c\n", COLUMNS, "|")
    assert rows.records == ({"id": "1", "state": "R", "name": "a|b|c"},)


def test_blank_lines_and_cluster_headers_are_no_junk() -> None:
    rows = split_rows("CLUSTER: one\n1|R|a\n\n  \nCLUSTER: two\n2|R|b\n", COLUMNS, "|")
    assert [record["id"] for record in rows.records] == ["1", "2"]
    assert rows.junk == ()


def test_a_short_line_is_reported_and_is_no_record() -> None:
    rows = split_rows("slurm_load_jobs: hello\n1|R|a\n2|R\n3|R|c\n", COLUMNS, "|")
    assert [record["id"] for record in rows.records] == ["1", "3"]
    assert rows.junk == ("slurm_load_jobs: hello", "2|R")


def test_a_name_that_goes_on_in_the_next_line_is_not_taken_for_its_first_line() -> None:
    rows = split_rows("1|R|chain\nfoo\n2|R|b\n", COLUMNS, "|")
    assert [record["name"] for record in rows.records] == ["chain\nfoo", "b"]
    assert rows.junk == ("foo",)


def test_the_separator_is_another_one_each_time() -> None:
    assert unguessable_separator() != unguessable_separator()


@given(st.lists(st.tuples(st.text("0123456789"), st.sampled_from(["R", "PD"]), st.text(max_size=30)), max_size=8))
def test_a_name_cannot_make_up_a_row(jobs: list[tuple[str, str, str]]) -> None:
    separator = unguessable_separator()
    text = "".join(separator.join(cells) + "\n" for cells in jobs)
    rows = split_rows(text, COLUMNS, separator)
    assert [(record["id"], record["state"]) for record in rows.records] == [(job[0], job[1]) for job in jobs]


@given(st.text(), st.sampled_from(["|", "\x1f"]))
def test_no_text_breaks_the_splitter(text: str, separator: str) -> None:
    rows = split_rows(text, COLUMNS, separator)
    assert all(tuple(record) == COLUMNS for record in rows.records)
