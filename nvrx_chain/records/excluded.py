"""The nodes that a chain keeps away from by now. Touches: `excluded.json`, reads only."""

from __future__ import annotations

from nvrx_chain.errors import RecordError, Unobserved
from nvrx_chain.records.chain import ChainFiles


def read_excluded_nodes(files: ChainFiles) -> dict[str, str] | None:
    """Node -> why; None where the record is not there or is that of an older chain: what the submit said counts.

    Raises RecordError when it cannot be read: with an empty list in its place jobs would run on the bad nodes again.
    """
    record = files.look_for_excluded()
    if isinstance(record, Unobserved):
        raise RecordError(
            f"reading the excluded nodes of the chain: {record.reason}",
            part=str(files.directory.excluded),
            hint="mend or move the file",
        )
    return None if record is None else dict(record.nodes)
