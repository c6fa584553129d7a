"""Further generations for a live chain, on a Slurm with a memory: what is queued, on record, refused and taken back."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvrx_chain.clock import format_time
from nvrx_chain.errors import NvrxError, RecordError, SlurmAmbiguous, SlurmError, Unobserved
from nvrx_chain.ops.chain import Operator, open_run_directory
from nvrx_chain.ops.hold import hold_chain, release_chain
from nvrx_chain.ops.settle import Desk
from nvrx_chain.records import files
from nvrx_chain.records.chain import ChainFiles
from nvrx_chain.records.control import ChainOutcome, Excluded
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.manifest import SubmissionId, SubmissionIntent
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.slurm.states import JobState
from nvrx_chain.submit import enqueue
from nvrx_chain.submit.extend import ExtendResult, extend_chain, render_extended, render_extension
from nvrx_chain.submit.extension import AT_WORK_SECONDS, ExtendRequest, Extension, plan_extension
from nvrx_chain.submit.inherited import find_foreign
from tests.fakes.fake_slurm import Act, AfterDoing
from tests.unit.submit.chains import (
    CHAIN_ID,
    LIMIT,
    OTHER_ID,
    TIMED_OUT,
    UNSEEN,
    Site,
    make_config,
    make_plan,
    record,
    stamps,
)


def request(site: Site, number: int = 1) -> ExtendRequest:
    chain = open_run_directory(site.directory)
    return ExtendRequest(files=chain.files, manifest=chain.manifest, resume_command=chain.resume_command, number=number)


def extend(site: Site, number: int = 1) -> ExtendResult:
    return extend_chain(request(site, number), site.slurm, site.clock, say=site.said.append)


def plan(site: Site, number: int = 1) -> Extension:
    return plan_extension(request(site, number), site.slurm, site.clock)


def sent(site: Site) -> list[tuple[str, ...]]:
    return [tuple(call.arguments[0]) for call in site.slurm.asked("submit")]  # type: ignore[arg-type]


def desk(site: Site) -> Desk:
    operator = Operator(user=site.slurm.user, uid=os.getuid(), host="login")
    return Desk(client=site.slurm, clock=site.clock, operator=operator, say=site.said.append, is_interactive=False)


def decide(site: Site, verdict: Verdict = Verdict.EXHAUSTED) -> None:
    outcome = ChainOutcome(
        chain_id=CHAIN_ID,
        verdict=verdict,
        array_job_id=1,
        by="1_0 on n1",
        why="because",
        evidence=(),
        decided_at=format_time(site.clock.now()),
    )
    write_atomic(site.run.outcome, encode_record(outcome))


def forget_id(site: Site, sequence: int) -> None:
    """As if the writer had died between sbatch's answer and the id."""
    site.run.submission_id(sequence).unlink()


def intend(site: Site, sequence: int, **changes: Any) -> None:
    """An intent of which sbatch was never asked."""
    newest = record(site.run.intent(sequence - 1), SubmissionIntent)
    (stamp,) = stamps(sequence)
    argv = tuple(f"--comment={stamp}" if word.startswith("--comment=") else word for word in newest.argv)
    fields = {"sequence": sequence, "stamp": stamp, "argv": argv, "intended_at": format_time(site.clock.now())}
    intent = msgspec.structs.replace(newest, **{**fields, **changes})
    write_atomic(site.run.intent(sequence), encode_record(intent))


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


# What is queued


def test_the_chain_goes_on_where_its_submissions_end(site: Site) -> None:
    first = site.submit()
    manifest = site.run.manifest.read_bytes()
    result = extend(site, 2)
    assert site.stamps() == stamps(1, 2, 3, 4, 5)
    assert result.sequences == (4, 5)
    assert set(result.array_job_ids).isdisjoint(first.array_job_ids)
    assert (result.adopted, result.queued_tasks, result.held) == ((), 10, False)
    for sequence, job in zip(result.sequences, result.array_job_ids, strict=True):
        assert record(site.run.submission_id(sequence), SubmissionId).array_job_id == job
        assert record(site.run.intent(sequence), SubmissionIntent).argv == sent(site)[sequence - 1]
    assert site.run.manifest.read_bytes() == manifest


def test_only_the_comment_differs_from_the_newest_submission(site: Site) -> None:
    site.submit(time_limit="2:00:00", account="a b", qos="high", sbatch_arg=("--nice=100",), gpus_per_node="8")
    extend(site)
    *_, old, new = sent(site)
    assert len(old) == len(new)
    assert set(new) ^ set(old) == {f"--comment={stamp}" for stamp in stamps(3, 4)}
    assert new[-1] == str(site.run.script)


def test_a_further_generation_waits_for_its_predecessor_and_for_nobody_else(site: Site) -> None:
    site.submit(chain_depth="1", after="4711")
    extend(site)
    old, new = sent(site)
    assert "--dependency=singleton,afterany:4711" in old
    assert "--dependency=singleton" in new


def test_a_second_extend_goes_on_after_the_first(site: Site) -> None:
    site.submit(chain_depth="1")
    assert extend(site, 2).sequences == (2, 3)
    assert extend(site).sequences == (4,)
    assert site.stamps() == stamps(1, 2, 3, 4)


def test_the_new_generation_starts_when_those_before_it_have_ended(site: Site) -> None:
    result = site.submit(chain_depth="1")
    (new,) = extend(site).array_job_ids
    assert site.slurm.task(f"{new}_0").reason == "Dependency"
    site.slurm.cancel((str(result.array_job_ids[0]),))
    assert site.slurm.task(f"{new}_0").state is JobState.RUNNING


def test_a_chain_that_ran_dry_without_a_verdict_goes_on(site: Site) -> None:
    for job in reversed(site.submit().array_job_ids):
        site.slurm.cancel((str(job),))
    extend(site)
    assert site.stamps() == stamps(4)


def test_each_intent_is_on_record_before_its_sbatch(site: Site) -> None:
    site.submit()
    seen: list[bool] = []
    submit = site.slurm.submit

    def look_first(argv: Any) -> Any:
        seen.append(site.run.intent(4 + len(seen)).exists())
        return submit(argv)

    site.slurm.submit = look_first  # type: ignore[method-assign]
    extend(site, 2)
    assert seen == [True, True]


def test_logs_that_were_removed_are_there_again_for_slurm(site: Site) -> None:
    site.submit()
    site.run.slurm_logs.rmdir()
    extend(site)
    assert site.run.slurm_logs.is_dir()


# What is refused


def assert_refused(site: Site, match: str, kind: type[NvrxError] = RecordError) -> NvrxError:
    asked, before = len(site.slurm.asked("submit")), names(site.run.path)
    submissions = names(site.run.submissions) if site.run.submissions.is_dir() else set()
    with pytest.raises(kind, match=match) as caught:
        extend(site)
    assert len(site.slurm.asked("submit")) == asked
    assert names(site.run.path) == before
    assert not submissions or names(site.run.submissions) == submissions
    return caught.value


@pytest.mark.parametrize("verdict", list(Verdict))
def test_an_ended_chain_is_refused_with_the_command_that_goes_on(site: Site, verdict: Verdict) -> None:
    site.submit()
    decide(site, verdict)
    error = assert_refused(site, f"has ended: {verdict.value} by 1_0 on n1: because")
    assert error.hint is not None
    assert f"nvrx-chain submit --resume --run-dir {shlex.quote(str(site.directory))} ..." in error.hint
    with pytest.raises(RecordError, match="has ended"):
        plan(site)


def test_a_verdict_that_cannot_be_read_is_no_leave_to_go_on(site: Site) -> None:
    site.submit()
    site.run.outcome.write_text("{")
    assert_refused(site, "reading the verdict of the chain")


def test_a_hold_that_cannot_be_read_is_no_leave_to_go_on(site: Site) -> None:
    site.submit()
    site.run.hold.mkdir()
    assert_refused(site, "reading the hold of the chain")


def test_submissions_that_cannot_be_listed_are_not_taken_for_none(site: Site) -> None:
    site.submit()
    site.run.submissions.rename(site.directory / "elsewhere")
    site.run.submissions.write_text("")
    assert_refused(site, "listing .*submissions")


def test_a_chain_without_submissions_is_refused(site: Site) -> None:
    site.submit()
    site.run.submissions.rename(site.directory / "elsewhere")
    site.run.submissions.mkdir()
    assert_refused(site, "has no submission on record")


def test_while_slurm_is_silent_nothing_is_written_or_queued(site: Site) -> None:
    site.submit()
    site.slurm.always("queue", UNSEEN)
    error = assert_refused(site, "the queue could not be read", SlurmError)
    assert error.hint == "nothing was queued"


def test_a_run_directory_that_was_moved_is_refused(site: Site) -> None:
    site.submit()
    elsewhere = site.directory.with_name("else where")
    site.directory.rename(elsewhere)
    chain = open_run_directory(elsewhere)
    moved = ExtendRequest(files=chain.files, manifest=chain.manifest, resume_command="", number=1)
    with pytest.raises(RecordError, match="which cannot be found"):
        extend_chain(moved, site.slurm, site.clock)
    assert len(sent(site)) == 3


def test_a_directory_that_took_a_new_chain_meanwhile_is_refused(site: Site) -> None:
    site.submit()
    before = request(site)
    site.run.manifest.write_text(site.run.manifest.read_text().replace(CHAIN_ID, OTHER_ID))
    with pytest.raises(RecordError, match="now holds another chain"):
        extend_chain(before, site.slurm, site.clock)
    assert len(sent(site)) == 3


@pytest.mark.parametrize("there", ["", "link"])
def test_a_script_that_is_not_there_or_a_link_is_refused(site: Site, there: str) -> None:
    site.submit()
    site.run.script.unlink()
    if there:
        site.run.script.symlink_to("/bin/true")
    assert_refused(site, "reading the script of the chain")


def replacing(old: str, *new: str) -> Callable[[list[str]], list[str]]:
    """Put `new`, or nothing, in the place of the word that begins with `old`."""
    return lambda argv: [made for word in argv for made in (new if word.startswith(old) else (word,))]


def adding(*words: str, at: int = -1) -> Callable[[list[str]], list[str]]:
    return lambda argv: [*argv[:at], *words, *argv[at:]]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (replacing("--dependency"), "it lacks --dependency=singleton"),
        (replacing("--dependency", "--dependency=afterok:1"), "it lacks --dependency=singleton"),
        (replacing("--no-requeue", "--requeue"), "it lacks --no-requeue"),
        (replacing("--array", "--array=0-999"), "it lacks --array"),
        (replacing("--job-name", "--job-name=other"), "it lacks --job-name"),
        (replacing("--chdir", "--chdir=/"), "it lacks --chdir=/"),
        (replacing("--comment", f"--comment=nvrx-chain:{OTHER_ID}/3"), "it lacks --comment"),
        (replacing("--export", "--export=NONE"), "it lacks --export=ALL"),
        (lambda argv: [*argv[:-1], "/tmp/evil.sh"], "it does not end with"),
        (lambda argv: [*argv, "more"], "it does not end with"),
        (lambda argv: [], "it does not end with"),
        (adding("--wrap=rm -rf /"), "--wrap cannot be passed"),
        (adding("--wra=x"), "--wrap cannot be passed"),
        (adding("--comment=nvrx-chain:x/3"), "--comment cannot be passed"),
        (adding("--uid=0"), "--uid cannot be passed"),
        (adding("/tmp/evil.sh"), "is no option"),
        (adding("--"), "is no option"),
        (adding("-Jx"), "--job-name cannot be passed"),
    ],
)
def test_a_submission_that_a_submit_would_not_have_written_is_refused(
    site: Site, change: Callable[[list[str]], list[str]], named: str
) -> None:
    site.submit()
    intent = record(site.run.intent(3), SubmissionIntent)
    write_atomic(
        site.run.intent(3), encode_record(msgspec.structs.replace(intent, argv=tuple(change(list(intent.argv)))))
    )
    error = assert_refused(site, r"0003\.json is no submission of it")
    assert named in str(error)


def test_an_intent_with_the_stamp_of_another_number_is_refused(site: Site) -> None:
    site.submit()
    intent = record(site.run.intent(3), SubmissionIntent)
    write_atomic(site.run.intent(3), encode_record(msgspec.structs.replace(intent, stamp=stamps(2)[0])))
    assert_refused(site, "its stamp is")


@pytest.mark.parametrize("name", ["0003.json", "0002.id.json"])
def test_a_damaged_record_is_an_error_and_nothing_is_decided_on_it(site: Site, name: str) -> None:
    site.submit()
    (site.run.submissions / name).write_text('{"schema": 1')
    assert_refused(site, name.replace(".", r"\."))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_submission_of_another_user_is_not_believed(site: Site) -> None:
    site.submit()
    os.chown(site.run.intent(3), 12345, 12345)
    # Root's own chain: what belongs to anybody else is not its word.
    assert_refused(site, "belongs to uid 12345")


_WORDS = st.lists(
    st.one_of(
        st.sampled_from(
            ["--parsable", "--no-requeue", "--wrap=x", "--comm=x", "--", "-H", "--hold", "--qos=high", "x"]
        ),
        st.text(max_size=12),
    ),
    max_size=4,
)


@given(words=_WORDS, cut=st.integers(min_value=0, max_value=12))
def test_whatever_stands_in_an_intent_only_words_of_a_submit_reach_sbatch(words: list[str], cut: int) -> None:
    made = make_plan(make_config(run_dir="/data/a run"))
    good = made.generations[2]
    argv = (*good.argv[:cut], *words, *good.argv[cut:])
    intent = SubmissionIntent(
        chain_id=CHAIN_ID, sequence=3, stamp=good.stamp, argv=argv, intended_at="2026-01-01T00:00:00Z"
    )
    if find_foreign(intent, made.manifest, good.stamp) is None:
        assert argv[-1] == str(made.run.script)
        added = list(argv)
        for word in good.argv:
            added.remove(word)
        assert all(word.startswith("-") and not word.startswith(("--wrap", "--comment")) for word in added)
        assert "--" not in added


# A held chain


def test_on_a_held_chain_the_new_generations_wait_for_the_release_with_the_others(site: Site) -> None:
    result = site.submit()
    hold_chain(open_run_directory(site.directory), desk(site))
    extended = extend(site, 2)
    assert extended.held
    assert site.said[-1].startswith("the chain is held: nvrx-chain release --run-dir ")
    assert site.said[-1].endswith(" starts it")
    assert all("--hold" in argv for argv in sent(site)[3:])
    rows = [site.slurm.task(f"{job}_0") for job in extended.array_job_ids]
    assert {row.reason for row in rows} == {"JobHeldUser"}
    site.slurm.cancel((str(result.array_job_ids[0]),))
    assert site.slurm.task(f"{extended.array_job_ids[0]}_0").state is JobState.PENDING
    report = release_chain(open_run_directory(site.directory), desk(site))
    assert report.is_complete
    assert set(extended.array_job_ids) <= set(report.done)
    assert site.slurm.task(f"{result.array_job_ids[1]}_0").state is JobState.RUNNING
    assert {site.slurm.task(f"{job}_0").reason for job in extended.array_job_ids} == {"Dependency"}


def test_after_the_release_the_option_of_the_held_time_is_left_out_again(site: Site) -> None:
    site.submit()
    hold_chain(open_run_directory(site.directory), desk(site))
    extend(site)
    release_chain(open_run_directory(site.directory), desk(site))
    assert not extend(site).held
    assert "--hold" not in sent(site)[-1]
    assert sent(site)[-1] == tuple(word.replace("/1", "/5") if "comment" in word else word for word in sent(site)[0])


@pytest.mark.parametrize(("release", "word"), [(False, "hold"), (True, "release")])
def test_a_hold_or_release_that_came_between_is_said_with_the_command_that_mends_it(
    site: Site, release: bool, word: str
) -> None:
    site.submit()
    if release:
        hold_chain(open_run_directory(site.directory), desk(site))
    submit = site.slurm.submit

    def meanwhile(argv: Any) -> Any:
        act = release_chain if release else hold_chain
        act(open_run_directory(site.directory), desk(site))
        return submit(argv)

    site.slurm.submit = meanwhile  # type: ignore[method-assign]
    extend(site)
    assert site.said[-1].startswith(f"the chain was {'released' if release else 'held'} meanwhile: nvrx-chain {word} ")


# Submissions without an id


def test_a_submission_whose_id_was_lost_is_adopted_first_and_does_not_count(site: Site) -> None:
    result = site.submit()
    forget_id(site, 3)
    extended = extend(site)
    assert extended.sequences == (3, 4)
    assert extended.array_job_ids[0] == result.array_job_ids[2]
    assert extended.adopted == (result.array_job_ids[2],)
    assert extended.queued_tasks == 5
    assert record(site.run.submission_id(3), SubmissionId).adopted
    assert site.stamps() == stamps(1, 2, 3, 4)
    assert len(sent(site)) == 4


def test_a_submission_that_may_be_under_way_is_not_repeated(site: Site) -> None:
    site.submit()
    intend(site, 4)
    site.clock.advance(AT_WORK_SECONDS - 60)
    assert_refused(site, "generation 4 has no array job on record: another submit or extend is at work on it")


@pytest.mark.parametrize("written", ["2999-01-01T00:00:00Z", "yesterday"])
def test_a_submission_whose_age_is_not_known_is_not_repeated(site: Site, written: str) -> None:
    site.submit()
    intend(site, 4, intended_at=written)
    assert_refused(site, f"at work on it since {written}")


def test_a_submission_that_was_never_queued_is_queued_under_its_own_number_and_counts(site: Site) -> None:
    site.submit()
    intend(site, 4)
    site.clock.advance(AT_WORK_SECONDS + 1)
    result = extend(site, 2)
    assert result.sequences == (4, 5)
    assert result.adopted == ()
    assert site.stamps() == stamps(1, 2, 3, 4, 5)


def test_while_slurm_is_silent_a_submission_without_an_id_is_not_judged(site: Site) -> None:
    site.submit()
    forget_id(site, 3)
    site.slurm.always("queue", UNSEEN)
    assert_refused(site, "it may be queued, and squeue did not answer", SlurmError)


def test_a_lost_submission_with_a_foreign_stamp_is_refused(site: Site) -> None:
    site.submit()
    intend(site, 4)
    intend(site, 5)
    intend(site, 4, stamp=f"nvrx-chain:{OTHER_ID}/4")
    assert_refused(site, f"its stamp is 'nvrx-chain:{OTHER_ID}/4'")


def test_a_generation_that_was_queued_without_an_answer_is_adopted_and_not_queued_again(site: Site) -> None:
    site.submit()
    site.slurm.script("submit", AfterDoing(TIMED_OUT))
    result = extend(site, 2)
    assert site.stamps() == stamps(1, 2, 3, 4, 5)
    assert len(sent(site)) == 5
    assert record(site.run.submission_id(4), SubmissionId).adopted
    assert result.adopted == (), "it is this call's own"


# What goes wrong


def test_at_a_rejection_it_says_what_is_queued_and_how_to_go_on_and_going_on_works(site: Site) -> None:
    site.submit()
    site.slurm.script("submit", Act.NORMAL, LIMIT)
    with pytest.raises(SlurmError, match="submitting generation 5 of 6: sbatch refused it") as caught:
        extend(site, 3)
    job, hint = site.array_jobs()[-1], str(caught.value.hint)
    where = shlex.quote(str(site.directory))
    assert "AssocMaxSubmitJobLimit" in str(caught.value)
    assert f"queued: {job}, 1 of 3 further generations" in hint
    assert f"nvrx-chain extend --run-dir {where} --by 2 queues the rest" in hint
    assert not site.run.intent(5).exists(), "generation 4 would wait for a successor that is not there"
    assert extend(site, 2).sequences == (5, 6)
    assert site.stamps() == stamps(1, 2, 3, 4, 5, 6)


def test_a_generation_that_may_have_been_queued_keeps_its_intent(site: Site) -> None:
    site.submit()
    site.slurm.always("submit", TIMED_OUT)
    with pytest.raises(SlurmAmbiguous, match=r"no clear answer 3 times.*queued: nothing, 0 of 1"):
        extend(site)
    assert site.run.intent(4).exists()
    site.slurm.always("submit", Act.NORMAL)
    site.clock.advance(AT_WORK_SECONDS)
    assert extend(site).sequences == (4,)


def test_a_refusal_after_an_unclear_answer_keeps_the_intent_too(site: Site) -> None:
    site.submit()
    site.slurm.script("submit", TIMED_OUT, LIMIT)
    with pytest.raises(SlurmError, match="sbatch refused it"):
        extend(site)
    assert site.run.intent(4).exists(), "the first request may still arrive"


def test_of_two_extends_at_once_the_second_queues_nothing_and_says_so_in_one_line(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.submit()
    write_first = files.write_first

    def other_is_faster(path: Path, content: bytes) -> bool:
        write_first(path, b"{}")
        return write_first(path, content)

    monkeypatch.setattr(enqueue, "write_first", other_is_faster)
    with pytest.raises(RecordError, match="another submit or extend is at work in this directory") as caught:
        extend(site)
    assert "queued: nothing, 0 of 1" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(sent(site)) == 3
    assert site.run.intent(4).read_bytes() == b"{}", "it is the other one's"


def test_a_job_that_another_extend_adopted_before_its_id_was_written_is_no_error(site: Site) -> None:
    site.submit()
    adopted: list[tuple[int, tuple[int, ...]]] = []
    show = site.slurm.show_job

    def adopt_first(job_id: int) -> Any:
        site.slurm.show_job = show  # type: ignore[method-assign]
        adopted.append((job_id, extend(site).sequences))
        return show(job_id)

    site.slurm.show_job = adopt_first  # type: ignore[method-assign]
    result = extend(site)
    assert result.sequences == (4,)
    assert adopted == [(result.array_job_ids[0], (4, 5))]
    assert site.stamps() == stamps(1, 2, 3, 4, 5)


def when_submitted(site: Site, act: Callable[[], None], *, at: int) -> None:
    """Do something right after the `at`-th sbatch from now has queued its job."""
    submit, count = site.slurm.submit, [0]

    def then(argv: Any) -> Any:
        submitted = submit(argv)
        count[0] += 1
        if count[0] == at:
            act()
        return submitted

    site.slurm.submit = then  # type: ignore[method-assign]


def test_when_the_chain_ends_meanwhile_what_was_queued_is_taken_back(site: Site) -> None:
    result = site.submit()
    when_submitted(site, lambda: decide(site, Verdict.COMPLETED), at=1)
    with pytest.raises(RecordError, match="ended while it was extended: completed by 1_0 on n1: because") as caught:
        extend(site, 2)
    new = [job for job in site.array_jobs() if job not in result.array_job_ids]
    assert len(new) == 2
    assert f"taken back: cancelled {new[0]} {new[1]}" in str(caught.value.hint)
    assert "nvrx-chain submit --resume" in str(caught.value.hint)
    assert site.stamps() == stamps(1, 2, 3), "what an earlier call has queued is whoever's that wrote the verdict"
    kept = {f"000{sequence}{end}" for sequence in (1, 2, 3) for end in (".json", ".id.json")}
    assert names(site.run.submissions) == kept
    assert names(site.run.history / f"{CHAIN_ID}-extend") == {"0004.json", "0004.id.json", "0005.json", "0005.id.json"}


def test_a_chain_that_ends_while_sbatch_refuses_is_said_to_have_ended(site: Site) -> None:
    site.submit()
    when_submitted(site, lambda: decide(site), at=1)
    site.slurm.script("submit", Act.NORMAL, LIMIT)
    with pytest.raises(RecordError, match="ended while it was extended"):
        extend(site, 2)
    assert site.stamps() == stamps(1, 2, 3)
    assert not site.run.intent(5).exists()


def test_what_may_still_turn_up_after_the_end_is_found_by_its_records(site: Site) -> None:
    site.submit()
    when_submitted(site, lambda: decide(site), at=1)
    site.slurm.script("submit", Act.NORMAL, TIMED_OUT, TIMED_OUT, TIMED_OUT)
    with pytest.raises(RecordError, match=r"ended while it was extended.*taken back: cancelled \d+;"):
        extend(site, 2)
    assert site.stamps() == stamps(1, 2, 3)
    assert {"0004.id.json", "0005.json"} <= names(site.run.submissions)


def test_what_could_not_be_taken_back_is_said_and_stays_on_record(site: Site) -> None:
    site.submit()
    when_submitted(site, lambda: decide(site), at=1)
    site.slurm.always("cancel", Act.IGNORED)
    with pytest.raises(RecordError, match=r"job \d+ may still be queued: PENDING; end them with nvrx-chain cancel"):
        extend(site)
    assert site.run.submission_id(4).exists()


def test_a_verdict_right_before_the_queue_is_touched_stops_it(site: Site) -> None:
    site.submit()
    queue = site.slurm.queue

    def ends_meanwhile(user: str | None = None) -> Any:
        decide(site)
        return queue(user)

    site.slurm.queue = ends_meanwhile  # type: ignore[method-assign]
    assert_refused_by_verdict(site)


def assert_refused_by_verdict(site: Site) -> None:
    with pytest.raises(RecordError, match="has ended: exhausted"):
        extend(site)
    assert len(sent(site)) == 3
    assert not site.run.intent(4).exists()


def test_a_verdict_that_cannot_be_read_afterwards_is_a_warning_and_cancels_nothing(site: Site) -> None:
    site.submit()
    when_submitted(site, site.run.outcome.mkdir, at=1)
    extend(site)
    assert site.stamps() == stamps(1, 2, 3, 4)
    assert any("whether the chain has ended meanwhile is not known" in line for line in site.said)


def test_a_job_that_the_site_changed_is_taken_back_with_the_others_of_this_call(site: Site) -> None:
    site.submit()
    submit, count = site.slurm.submit, [0]

    def change_second(argv: Any) -> Any:
        count[0] += 1
        return submit([word for word in argv if word != "--no-requeue"] if count[0] == 2 else argv)

    site.slurm.submit = change_second  # type: ignore[method-assign]
    with pytest.raises(SlurmError, match=r"--no-requeue: the job has Requeue.*taken back: cancelled \d+ \d+\)"):
        extend(site, 3)
    assert site.stamps() == stamps(1, 2, 3)
    assert not {"0004.json", "0004.id.json", "0005.json"} & names(site.run.submissions)


def test_a_number_that_the_queue_still_shows_is_not_given_out_again(site: Site) -> None:
    test_a_job_that_the_site_changed_is_taken_back_with_the_others_of_this_call(site)
    # Its answer is lost: under number 4 the cancelled job would be taken for it.
    site.slurm.script("submit", AfterDoing(TIMED_OUT))
    del site.slurm.submit
    result = extend(site)
    assert result.sequences == (6,)
    assert site.stamps() == stamps(1, 2, 3, 6)


def test_a_comment_that_another_job_copied_takes_no_number(site: Site) -> None:
    site.submit()
    site.slurm.submit_as(site.slurm.user, ["--job-name=other", f"--comment=nvrx-chain:{CHAIN_ID}/999999999", "x"])
    assert extend(site).sequences == (4,)


def test_after_the_last_number_nothing_is_queued(site: Site) -> None:
    site.submit()
    newest = record(site.run.intent(3), SubmissionIntent)
    write_atomic(site.run.intent(999_999_999), encode_record(msgspec.structs.replace(newest, chain_id=OTHER_ID)))
    assert_refused(site, "no number is left after 999999999")


def test_the_chain_that_was_extended_is_one_chain_for_its_generations(site: Site) -> None:
    result = site.submit(chain_depth="1")
    chain = ChainFiles(site.run, CHAIN_ID)
    assert chain.is_last(result.array_job_ids[0])
    (new,) = extend(site).array_job_ids
    assert not chain.is_last(result.array_job_ids[0])
    assert chain.is_last(new)


# The dry run


def test_a_dry_run_shows_exactly_what_is_then_sent_and_changes_nothing(site: Site) -> None:
    site.submit()
    before = {path: path.read_bytes() for path in site.directory.rglob("*") if path.is_file()}
    asked = request(site, 2)
    shown = render_extension(asked, plan_extension(asked, site.slurm, site.clock), as_json=False)
    assert {path: path.read_bytes() for path in site.directory.rglob("*") if path.is_file()} == before
    assert len(sent(site)) == 3
    extend(site, 2)
    assert [shlex.split(line) for line in shown.splitlines() if line.startswith("sbatch ")] == [
        ["sbatch", *argv] for argv in sent(site)[3:]
    ]


def test_a_dry_run_as_data_is_the_same(site: Site) -> None:
    job = site.submit().array_job_ids[2]
    forget_id(site, 3)
    hold_chain(open_run_directory(site.directory), desk(site))
    asked = request(site)
    shown = msgspec.json.decode(render_extension(asked, plan_extension(asked, site.slurm, site.clock), as_json=True))
    assert (shown["dry_run"], shown["held"], shown["queued_tasks"]) == (True, True, 5)
    assert shown["adopted"] == [job], "as the list of the extend itself"
    assert [(each["sequence"], each["argv"][0], "--hold" in each["argv"]) for each in shown["generations"]] == [
        (4, "sbatch", True)
    ]


def test_a_dry_run_does_without_slurm_and_says_so(site: Site) -> None:
    site.submit()
    site.slurm.always("queue", Unobserved("no answer"))
    asked = request(site)
    shown = render_extension(asked, plan_extension(asked, site.slurm, site.clock), as_json=False)
    assert "# the queue could not be read, and an extend would be refused: no answer" in shown
    assert sum(line.startswith("sbatch ") for line in shown.splitlines()) == 1


def test_a_dry_run_names_what_would_be_adopted(site: Site) -> None:
    job = site.submit().array_job_ids[2]
    forget_id(site, 3)
    asked = request(site)
    shown = render_extension(asked, plan_extension(asked, site.slurm, site.clock), as_json=False)
    assert f"# generation 3: job {job} is there and not on record, it would be adopted" in shown


def test_the_result_names_each_generation_and_what_one_types_next(site: Site) -> None:
    site.submit()
    result = extend(site, 2)
    text = render_extended(result, as_json=False)
    assert all(f"{job} (generation {n})" in text for n, job in zip((4, 5), result.array_job_ids, strict=True))
    assert f"nvrx-chain status --run-dir {shlex.quote(str(site.directory))}" in text
    assert msgspec.json.decode(render_extended(result, as_json=True), type=ExtendResult) == result


def keep_away_from(site: Site, *nodes: str, chain_id: str = CHAIN_ID) -> None:
    """What `nvrx-chain exclude` records."""
    record = Excluded(chain_id=chain_id, nodes=dict.fromkeys(nodes, "slow"), by="x", changed_at="y")
    write_atomic(site.run.excluded, encode_record(record))


def excluded_by(site: Site) -> list[str]:
    (planned,) = plan(site).to_queue
    return [word for word in planned.argv if word.startswith("--exclude")]


def test_the_nodes_that_were_excluded_since_take_the_place_of_those_of_the_submit(site: Site) -> None:
    site.submit(exclude="n7")
    assert excluded_by(site) == ["--exclude=n7"]
    keep_away_from(site, "n7", "n8")
    assert excluded_by(site) == ["--exclude=n[7-8]"]
    extend(site)
    assert "--exclude=n[7-8]" in sent(site)[-1]
    keep_away_from(site, "n8")
    assert excluded_by(site) == ["--exclude=n8"], "a node that was taken back stays back"
    keep_away_from(site)
    assert excluded_by(site) == []
    keep_away_from(site, "n1", chain_id=OTHER_ID)
    assert excluded_by(site) == ["--exclude=n[7-8]"]


@pytest.mark.parametrize("content", [b"{", b'{"chain_id": 5}'])
def test_excluded_nodes_that_cannot_be_read_stop_an_extend(site: Site, content: bytes) -> None:
    site.submit()
    site.run.excluded.write_bytes(content)
    with pytest.raises(RecordError, match="reading the excluded nodes of the chain"):
        plan(site)


def test_what_is_recorded_as_a_node_and_is_none_never_reaches_sbatch(site: Site) -> None:
    site.submit()
    keep_away_from(site, "n1 --wrap=id")
    with pytest.raises(RecordError, match="is no node name"):
        extend(site)


def test_of_two_extends_in_the_same_moment_each_generation_is_queued_once(site: Site) -> None:
    site.submit()
    together, one_at_a_time = threading.Barrier(2, timeout=30), threading.Lock()
    submit, outcomes = site.slurm.submit, []

    def submit_alone(argv: Any) -> Any:
        with one_at_a_time:
            return submit(argv)

    site.slurm.submit = submit_alone  # type: ignore[method-assign]
    asked = request(site, 2)
    plans = [plan_extension(asked, site.slurm, site.clock) for _ in range(2)]

    def queue_all(planned: Extension) -> None:
        progress = enqueue.Progress(say=site.said.append)
        together.wait()
        try:
            enqueue.Enqueuer(
                plan=planned.plan,
                directory=planned.directory,
                client=site.slurm,
                clock=site.clock,
                progress=progress,
            ).enqueue()
            outcomes.append("queued")
        except RecordError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=queue_all, args=(planned,)) for planned in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert site.stamps() == stamps(1, 2, 3, 4, 5), outcomes
    assert sum("another submit or extend is at work" in one for one in outcomes) >= 1
    assert extend(site, 2).sequences == (6, 7), "the loser repeats it and gets what it asked for"
    assert site.stamps() == stamps(1, 2, 3, 4, 5, 6, 7)
