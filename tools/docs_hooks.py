"""Hooks of the documentation's build: generated pages, and the text for language models.

`reference/command-line.md` comes from the parsers of `infersdk.cli`, `reference/settings.md` from the wrappers.
`llms.txt` lists the pages, and `llms-full.txt` has their text (https://llmstxt.org).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from infersdk.cli import parser

#: Pages whose text is not part of llms-full.txt: they are made from docstrings or have tables of figures alone.
LEFT_OUT = ("api/",)


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    for path, text in (("reference/command-line.md", command_line()), ("reference/settings.md", settings())):
        files.append(File.generated(config, path, content=text))
    return files


_texts: dict[str, tuple[str, str, str]] = {}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Keeps the title, the address and the text of each page."""
    title = re.search(r"^# (.+)$", markdown, re.MULTILINE)
    _texts[page.file.src_uri] = (title[1] if title else page.title, page.url or "index.html", markdown)
    return markdown


def on_post_build(config: Any) -> None:
    """Writes llms.txt and llms-full.txt."""
    folder = Path(config["site_dir"])
    head = f"# {config['site_name']}\n\n> {config['site_description']}\n"
    chosen = {path: one for path, one in _texts.items() if not path.startswith(LEFT_OUT)}
    order = sorted(chosen, key=lambda path: (path != "index.md", path != "getting-started.md", path))
    index = "\n".join(f"- [{chosen[path][0]}]({chosen[path][1]})" for path in order)
    (folder / "llms.txt").write_text(f"{head}\n## Pages\n\n{index}\n", "utf-8")
    pages = "\n\n".join(f"<!-- {path} -->\n\n{chosen[path][2].strip()}" for path in order)
    (folder / "llms-full.txt").write_text(f"{head}\n{pages}\n", "utf-8")


def command_line() -> str:
    """The reference of all commands."""
    top = parser()
    (subparsers,) = (action for action in top._actions if isinstance(action, argparse._SubParsersAction))
    parts = [
        "# Command line",
        "`infersdk COMMAND --help` prints the same text. Commands that take a wrapper also take each "
        "setting of the wrapper as an option: [settings of the wrappers](settings.md).",
        top.epilog or "",
    ]
    helps = {action.dest: action.help for action in subparsers._choices_actions}
    for name, command in subparsers.choices.items():
        parts += _command(f"infersdk {name}", command, helps.get(name) or "", 2)
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: argparse.ArgumentParser, summary: str, level: int) -> list[str]:
    command.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=100)
    usage = command.format_usage().removeprefix("usage: ").strip()
    parts = [f"{'#' * level} {name}", _escaped(command.description or summary), f"```text\n{usage}\n```"]
    inner = None
    for group in command._action_groups:
        rows = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction):
                inner = action
            elif action.help != argparse.SUPPRESS and not isinstance(action, argparse._HelpAction):
                rows.append(_row(command, action))
        if rows:
            title = "" if group.title in ("positional arguments", "options") else f"*{group.title}*"
            parts += [title] if title else []
            parts.append("\n".join(["| argument | |", "|---|---|", *rows]))
    if inner is not None:
        helps = {action.dest: action.help for action in inner._choices_actions}
        for key, one in inner.choices.items():
            parts += _command(f"{name} {key}", one, helps.get(key) or "", level + 1)
    return parts


def _row(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    formatter = command._get_formatter()
    names = formatter._format_action_invocation(action).replace("|", "\\|")
    text = formatter._expand_help(action) if action.help else ""
    return f"| `{names}` | {_escaped(text)} |"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def settings() -> str:
    """The settings of the wrappers, by `type`."""
    import msgspec

    from infersdk.commands.wrapper_options import _help_texts
    from infersdk.models import TYPES, VisionModel

    parts = [
        "# Settings of the wrappers",
        "Each setting is a keyword argument in Python, a key of a configuration, and an option of the command line "
        "(`max_det` becomes `--max-det`).",
    ]
    common = set(VisionModel.Settings.__struct_fields__)

    def table(kind: Any, names: list[str]) -> str:
        texts = _help_texts(kind)
        fields = {one.name: one for one in msgspec.structs.fields(kind.Settings)}
        rows = []
        for name in names:
            default = fields[name].default
            shown = "" if default in (None, msgspec.NODEFAULT) else f"`{default}`"
            rows.append(f"| `{name}` | {shown} | {_escaped(texts.get(name, ''))} |")
        return "\n".join(["| setting | default | |", "|---|---|---|", *rows])

    parts += ["## All wrappers", table(VisionModel, list(VisionModel.Settings.__struct_fields__))]
    for name, kind in TYPES.items():
        own = [field for field in kind.Settings.__struct_fields__ if field not in common]
        if own:
            parts += [f"## {name}", table(kind, own)]
    return "\n\n".join(parts) + "\n"
