"""What is printed before anything happens: the settings with their origins, the dry run. Pure."""

from __future__ import annotations

import shlex
from typing import Any

import msgspec

from nvrx_chain.masking import HIDDEN, mask_text, mask_words
from nvrx_chain.submit.export import mask_export
from nvrx_chain.submit.option import REQUIRED
from nvrx_chain.submit.plan import SubmitPlan
from nvrx_chain.submit.preview import SubmitPreview
from nvrx_chain.submit.settings import Setting, Settings
from nvrx_chain.submit.shape import describe_shape

SCHEMA = 1
"""Of everything that a submit prints as JSON."""


def render_settings(settings: Settings, *, as_json: bool) -> str:
    """Every setting with its value and origin, as TOML that could be the file of settings, or as JSON."""
    shown = settings.by_key.values()
    if as_json:
        values = {setting.option.key: {"value": _shown_value(setting), "origin": setting.origin} for setting in shown}
        return render_json({"schema": SCHEMA, **values})
    rows = [_setting_row(setting) for setting in shown]
    width = max(len(row) for row, _ in rows)
    return "\n".join(f"{row:<{width}}  # {origin}" for row, origin in rows)


def _setting_row(setting: Setting) -> tuple[str, str]:
    key, value = setting.option.key, _shown_value(setting)
    if value is None:
        unset = "not set, and required" if setting.option.off is REQUIRED else "not set"
        return f"# {key}: {unset}", setting.origin
    comment = "" if setting.option.in_file else "# "
    return f"{comment}{key} = {_toml(value)}", setting.origin


def _shown_value(setting: Setting) -> Any:
    """The value as others may read it: a terminal is shared, and its text ends up in tickets."""
    value = setting.value
    if setting.option.key == "export" and value is not None:
        return mask_export(value)
    if isinstance(value, tuple):
        return mask_words(value)
    return mask_text(value) if isinstance(value, str) else value


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
                "schema": SCHEMA,
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
                "private": _private_as_data(plan),
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


def _private_as_data(plan: SubmitPlan) -> dict[str, Any]:
    """What of the environment travels how; no value of it is shown."""
    return {
        "export": plan.manifest.export.value,
        "file": plan.manifest.private_file,
        "variables": dict.fromkeys(plan.manifest.exported, HIDDEN),
    }


def _private_lines(plan: SubmitPlan) -> tuple[str, ...]:
    manifest = plan.manifest
    if plan.private is None:
        return ()
    where = f"{shlex.quote(str(plan.run.private))} (mode 600)"
    lines = [f"sbatch is told --export={manifest.export.value}; the launchers read {where}"]
    if manifest.exported:
        lines.append("there: " + " ".join(f"{name}={HIDDEN}" for name in manifest.exported))
    if plan.private.workload is not None or plan.private.launcher_command is not None:
        lines.append("and there alone: words of the workload that look like secrets")
    return tuple(lines)


def _headline(plan: SubmitPlan) -> tuple[str, ...]:
    manifest = plan.manifest
    launcher = " ".join((manifest.launcher.kind.value, *manifest.launcher.arguments))
    return (
        f"chain {manifest.chain_id}, name {manifest.job_name}, run directory {shlex.quote(manifest.run_directory)}",
        f"{manifest.chain_depth} generations of {describe_shape(manifest.shape)}; {plan.queued_tasks} tasks in all",
        *_private_lines(plan),
        f"{launcher} runs {_on_one_line(shlex.join(manifest.workload))}",
    )


def _on_one_line(command: str) -> str:
    # A word may hold a line break, and the rest of it would no longer be a comment.
    return command.replace("\n", "\\n").replace("\r", "\\r")


def render_json(value: Any) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
