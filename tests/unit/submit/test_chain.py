"""A submit on a Slurm with a memory: what is queued, what is on record, and what the next submit does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from nvrx_chain.errors import PreflightError, RecordError
from nvrx_chain.records.control import ChainOutcome
from nvrx_chain.records.files import encode_record, write_atomic
from nvrx_chain.records.manifest import ChainManifest, SubmissionId, SubmissionIntent
from nvrx_chain.records.outcome import Verdict
from nvrx_chain.slurm.identity import format_comment
from nvrx_chain.submit import rundir
from nvrx_chain.submit.chain import SubmitResult
from tests.unit.submit.chains import CHAIN_ID, OTHER_ID, Site, make_plan, record, stamps


def test_a_submit_queues_all_generations_in_order(site: Site) -> None:
    result = site.submit()
    assert result.array_job_ids == tuple(sorted(result.array_job_ids))
    assert len(result.array_job_ids) == 3
    assert site.stamps() == stamps(1, 2, 3)
    assert result.queued_tasks == 15


def test_everything_is_on_record_before_and_after_each_sbatch(site: Site) -> None:
    result = site.submit()
    run = site.run
    manifest = record(run.manifest, ChainManifest)
    assert (manifest.chain_id, manifest.run_directory, manifest.cluster) == (CHAIN_ID, str(site.directory), "fake")
    for sequence, job in enumerate(result.array_job_ids, start=1):
        intent = record(run.intent(sequence), SubmissionIntent)
        submitted = record(run.submission_id(sequence), SubmissionId)
        assert intent.stamp == format_comment(CHAIN_ID, sequence)
        assert intent.argv == site.slurm.asked("submit")[sequence - 1].arguments[0]
        assert (submitted.array_job_id, submitted.adopted) == (job, False)
        assert submitted.submitted_at is not None
    assert run.script.read_text().startswith("#!/bin/bash\n")
    assert run.slurm_logs.is_dir()
    assert list(run.history.iterdir()) == []


def test_at_the_first_sbatch_chain_script_logs_and_intent_are_there(site: Site) -> None:
    run = site.run
    seen: list[bool] = []
    submit = site.slurm.submit

    def look_first(argv: Any) -> Any:
        seen.append(all(p.exists() for p in (run.manifest, run.script, run.slurm_logs, run.intent(len(seen) + 1))))
        return submit(argv)

    site.slurm.submit = look_first  # type: ignore[method-assign]
    site.submit()
    assert seen == [True, True, True]


def test_a_preflight_error_writes_nothing_and_asks_nothing_of_slurm(site: Site) -> None:
    with pytest.raises(PreflightError, match="no partition nope"):
        site.submit(partition="nope")
    assert not site.directory.exists()
    assert site.slurm.asked("submit") == []


def test_a_live_chain_is_not_submitted_over(site: Site) -> None:
    site.submit()
    for resume in (False, True):
        with pytest.raises(PreflightError, match="holds the live chain"):
            site.submit(chain_id=OTHER_ID, resume=resume)
    assert site.stamps() == stamps(1, 2, 3)


def end_chain(site: Site, result: SubmitResult) -> None:
    for job in reversed(result.array_job_ids):
        site.slurm.cancel((str(job),))


def test_an_ended_chain_needs_resume_which_keeps_its_checkpoints_and_moves_its_records(site: Site) -> None:
    first = site.submit()
    end_chain(site, first)
    run = site.run
    verdict = ChainOutcome(
        chain_id=CHAIN_ID,
        verdict=Verdict.NO_RESTART,
        array_job_id=None,
        by="x",
        why="y",
        evidence=(),
        decided_at="2026-01-01T00:00:00Z",
    )
    write_atomic(run.outcome, encode_record(verdict))
    run.hold.write_text("{}")
    run.default_iteration_file.parent.mkdir()
    run.default_iteration_file.write_text("40")
    with pytest.raises(PreflightError, match=r"has ended: no_restart.*--resume"):
        site.submit(chain_id=OTHER_ID)
    second = site.submit(chain_id=OTHER_ID, resume=True)
    assert set(second.array_job_ids).isdisjoint(first.array_job_ids)
    assert record(run.manifest, ChainManifest).chain_id == OTHER_ID
    assert record(run.submission_id(1), SubmissionId).array_job_id == second.array_job_ids[0]
    assert not run.outcome.exists()
    assert not run.hold.exists()
    assert run.default_iteration_file.read_text() == "40"
    old = run.history / CHAIN_ID
    assert {path.name for path in old.iterdir()} == {"chain.json", "chain_outcome.json", "hold.json", "submissions"}
    assert record(old / "chain_outcome.json", ChainOutcome) == verdict
    assert any(str(old) in line for line in site.said)


def test_a_chain_that_ran_out_of_generations_needs_resume_too(site: Site) -> None:
    end_chain(site, site.submit())
    with pytest.raises(PreflightError, match=r"no generation is left.*--resume"):
        site.submit(chain_id=OTHER_ID)
    site.submit(chain_id=OTHER_ID, resume=True)
    assert site.stamps() == stamps(1, 2, 3, chain_id=OTHER_ID)


def test_a_second_resume_keeps_the_history_of_the_first(site: Site) -> None:
    for number in range(3):
        end_chain(site, site.submit(chain_id=CHAIN_ID, resume=number > 0))
    assert sorted(path.name for path in site.run.history.iterdir()) == [CHAIN_ID, f"{CHAIN_ID}.2"]


def test_a_chain_of_another_cluster_is_not_judged_by_this_ones_queue(site: Site) -> None:
    end_chain(site, site.submit())
    run = site.run
    text = run.manifest.read_text().replace('"cluster": "fake"', '"cluster": "other"')
    run.manifest.write_text(text)
    with pytest.raises(PreflightError, match="a chain of cluster other"):
        site.submit(chain_id=OTHER_ID, resume=True)


@pytest.mark.parametrize("content", ["", "{}", '{"schema": 1', "[]"])
def test_a_damaged_manifest_is_an_error_and_nothing_is_decided_on_it(site: Site, content: str) -> None:
    site.directory.mkdir()
    site.run.manifest.write_text(content)
    with pytest.raises(RecordError, match=r"chain\.json"):
        site.submit()
    assert site.slurm.asked("submit") == []


def test_a_file_in_place_of_the_run_directory_is_an_error(site: Site) -> None:
    site.directory.write_text("")
    with pytest.raises(RecordError, match="not a directory"):
        site.submit()


def test_a_link_in_place_of_one_of_its_directories_is_refused(site: Site, tmp_path: Path) -> None:
    site.directory.mkdir()
    (tmp_path / "elsewhere").mkdir()
    site.run.slurm_logs.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecordError, match="no directory of ours"):
        site.submit()
    assert site.slurm.asked("submit") == []


def test_of_two_submits_at_once_one_wins_and_the_other_queues_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_first = rundir.write_first

    def other_is_faster(path: Path, content: bytes) -> bool:
        write_first(path, b"{}")
        return write_first(path, content)

    monkeypatch.setattr(rundir, "write_first", other_is_faster)
    with pytest.raises(RecordError, match="another submit was faster"):
        site.submit()
    assert site.slurm.asked("submit") == []


def test_the_directories_follow_the_umask_and_the_script_is_executable(site: Site) -> None:
    old = os.umask(0o027)
    try:
        site.submit()
    finally:
        os.umask(old)
    assert oct(site.directory.stat().st_mode & 0o777) == "0o750"
    assert os.access(site.run.script, os.X_OK)


def test_what_speaks_against_the_chain_but_not_enough_is_said(site: Site) -> None:
    site.submit(hot_spares="7")
    assert any(line.startswith("warning: partition main has 8 nodes") for line in site.said)


def test_a_plan_is_what_is_sent(site: Site) -> None:
    plan = make_plan(site.config())
    site.submit()
    assert [call.arguments[0] for call in site.slurm.asked("submit")] == [g.argv for g in plan.generations]
