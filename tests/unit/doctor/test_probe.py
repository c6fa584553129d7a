"""What a machine says of itself, through real child processes and through the text that srun carries."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import msgspec
import pytest

from nvrx_chain.doctor.facts import Directory, Host, Place, pack_place, unpack_place
from nvrx_chain.doctor.probe import MARK, ProbeRequest, decode_answer, probe_argv, read_place
from nvrx_chain.errors import Unobserved
from nvrx_chain.submit.children import ask_child
from tests.unit.doctor.build import make_place

SECONDS = {"host": 40.0, "slurm": 40.0, "directory": 40.0, "launcher": 40.0, "gpus": 40.0}


def test_a_machine_says_all_of_itself_and_cannot_launch_what_is_no_python(tmp_path: Path) -> None:
    nasty = tmp_path / "run & dir #1 'q\"u' 100%"
    nasty.mkdir()
    request = ProbeRequest(part="all", directory=str(nasty), token="abc", python="/bin/false")
    place = read_place(request, {**os.environ, "PATH": "/no/slurm/here"}, SECONDS)
    assert isinstance(place.host, Host)
    assert place.host.python == sys.executable
    assert isinstance(place.directory, Directory)
    assert place.directory.tested == str(nasty)
    assert not isinstance(place.slurm, Unobserved)
    assert {program.problem for program in place.slurm.programs} == {"not on PATH"}
    assert isinstance(place.launcher, Unobserved)


def test_a_part_that_takes_too_long_is_unobserved_and_the_others_are_not(tmp_path: Path) -> None:
    request = ProbeRequest(part="all", directory=str(tmp_path), token="abc", python="/bin/false")
    place = read_place(request, os.environ, {**SECONDS, "host": 0.001})
    assert place.host == Unobserved("no answer within 0.001 s")
    assert isinstance(place.directory, Directory)


def test_a_place_survives_the_way_through_srun() -> None:
    for place in (make_place(), make_place(gpus=Unobserved("no answer within 5 s"), slurm=Unobserved("x"))):
        assert unpack_place(pack_place(place)) == place
        assert b"\n" not in pack_place(place)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b'{"parts": {"host": {}}, "blind": {}}', b"\xff"])
def test_text_that_is_no_place_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):
        unpack_place(text)


def test_a_part_that_nobody_spoke_of_is_unobserved() -> None:
    place = unpack_place(b'{"parts": {}, "blind": {"gpus": "crashed"}}')
    assert place == Place(
        **dict.fromkeys(("host", "slurm", "directory", "launcher"), Unobserved("no answer")),
        gpus=Unobserved("crashed"),
    )


def test_an_answer_is_found_between_the_lines_of_a_site() -> None:
    class One(msgspec.Struct):
        a: int

    assert decode_answer(b"motd\n" + MARK + b'{"a": 1}\nbye\n', One) == One(a=1)
    assert decode_answer(b"motd\n", One) == Unobserved("it printed no answer")
    assert isinstance(decode_answer(MARK + b"{", One), Unobserved)


def test_the_hidden_command_refuses_a_request_that_is_none() -> None:
    argv = list(probe_argv(sys.executable, ProbeRequest(part="host", directory="/", token="", python="")))
    argv[-1] = "{"
    answer = ask_child(argv, os.environ, seconds=40)
    assert isinstance(answer, Unobserved)
    assert "DecodeError" in answer.reason
