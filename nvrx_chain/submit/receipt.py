"""What is printed after a submit: the queued chain, and what one types next. Pure."""

from __future__ import annotations

import shlex

from nvrx_chain.submit.chain import SubmitResult
from nvrx_chain.submit.show import SCHEMA, render_json


def render_parsable(result: SubmitResult) -> str:
    """One line per generation, as `sbatch --parsable` prints it."""
    cluster = f";{result.cluster}" if result.cluster else ""
    return "\n".join(f"{job}{cluster}" for job in result.array_job_ids)


def render_result(result: SubmitResult, *, as_json: bool) -> str:
    """The queued chain, and what one types next."""
    if as_json:
        return render_json(
            {
                "schema": SCHEMA,
                "chain_id": result.chain_id,
                "name": result.name,
                "run_directory": str(result.run_directory),
                "array_job_ids": result.array_job_ids,
                "cluster": result.cluster,
                "queued_tasks": result.queued_tasks,
                "notes": result.notes,
            }
        )
    where = shlex.quote(str(result.run_directory))
    jobs = " ".join(str(job) for job in result.array_job_ids)
    return "\n".join(
        (
            f"submitted   {result.name} (chain {result.chain_id})",
            f"array jobs  {jobs}",
            f"directory   {where}",
            f"next        nvrx-chain status --run-dir {where}",
            f"            nvrx-chain logs --run-dir {where} -f",
            f"            nvrx-chain cancel --run-dir {where}",
        )
    )
