"""What is printed before anything happens: the settings with their origins, the dry run. Pure."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from nvrx_chain.submit.options import REQUIRED
from nvrx_chain.submit.plan import SubmitPlan
from nvrx_chain.submit.preview import SubmitPreview
from nvrx_chain.submit.settings import Setting, Settings
from nvrx_chain.submit.shape import describe_shape


def render_settings(settings: Settings, *, as_json: bool) -> str:
    """Every setting with its value and origin, as TOML that could be the file of settings, or as JSON."""
    shown = settings.by_key.values()
    if as_json:
        return render_json(
            {setting.option.key: {"value": setting.value, "origin": setting.origin} for setting in shown}
        )
    rows = [_setting_row(setting) for setting in shown]
    width = max(len(row) for row, _ in rows)
    return "\n".join(f"{row:<{width}}  # {origin}" for row, origin in rows)


def _setting_row(setting: Setting) -> tuple[str, str]:
    key, value = setting.option.key, setting.value
    if value is None:
        unset = "not set, and required" if setting.option.off is REQUIRED else "not set"
        return f"# {key}: {unset}", setting.origin
    comment = "" if setting.option.in_file else "# "
    return f"{comment}{key} = {_toml(value)}", setting.origin


def _toml(value: Any) -> str:
    # TOML's basic strings, numbers, booleans and arrays are written as in JSON.
    return msgspec.json.encode(value).decode()


def render_preview(preview: SubmitPreview, *, as_json: bool) -> str:
    """The dry run: for each generation that is not queued yet the exact command, then the script."""
    plan, queued = preview.plan, preview.queued_sequences
    missing = [generation for generation in plan.generations if generation.sequence not in queued]
    if as_json:
        return render_json(
            {
                "dry_run": True,
                "entry": preview.entry.value,
                "manifest": plan.manifest,
                "queued_tasks": plan.queued_tasks,
                "generations": [
                    {
                        "sequence": generation.sequence,
                        "stamp": generation.stamp,
                        "argv": ["sbatch", *generation.argv],
                        "command": generation.command,
                    }
                    for generation in missing
                ],
                "script_path": str(plan.run.script),
                "script": plan.script,
                "problems": [
                    {"severity": problem.severity.value, "message": problem.message, "hint": problem.hint}
                    for problem in preview.problems
                ],
            }
        )
    lines = [f"# {line}" for line in _headline(plan)]
    for generation in missing:
        lines += [f"# generation {generation.sequence} of {plan.manifest.chain_depth}", generation.command]
    return "\n".join([*lines, f"# {shlex.quote(str(plan.run.script))}", plan.script.rstrip("\n")])


def _headline(plan: SubmitPlan) -> tuple[str, ...]:
    manifest = plan.manifest
    return (
        f"chain {manifest.chain_id}, name {manifest.job_name}, run directory {shlex.quote(manifest.run_directory)}",
        f"{manifest.chain_depth} generations of {describe_shape(manifest.shape)}; {plan.queued_tasks} tasks in all",
    )


def render_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
