"""The tables of settings in the docs, made of the schema: `python -m tests.helpers.setting_tables` writes them anew.

A table stands below a comment that names a task, perhaps a family, and keys or patterns of keys:
<!-- settings of transcribe with whisper: decode.windows.* decode.batch -->
"""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from regard.config.family import family_of
from regard.config.merge import kind_of, to_toml
from regard.config.run import Run
from regard.config.schema import SchemaField, schema_of
from regard.config.task_settings import section_types

DOCS = Path(__file__).parents[2] / "docs"
MARK = re.compile(
    r"(?P<mark><!-- settings of (?P<task>[\w-]+)(?: with (?P<family>[\w-]+))?: (?P<keys>[^>]*?) -->\n)(?P<table>(?:\|.*\n)*)"
)


def table(task: str, family: str | None, patterns: list[str]) -> str:
    """The rows of the settings that match a pattern, in the order of the patterns."""
    model = {} if family is None else {"model": family_of(family).Config}
    fields = list(schema_of(Run, {**section_types(task, family), **model}))
    chosen: dict[str, list[SchemaField]] = {}
    for pattern in patterns:
        matching = [field for field in fields if fnmatchcase(field.key, pattern)]
        assert matching, f"{pattern} is no setting of {task}"
        for field in matching:
            if field not in (same := chosen.setdefault(field.key, [])):
                same.append(field)
    slots = {field.key.removesuffix("kind"): len(field.kinds) for field in fields if field.kinds}
    rows = (row for key, same in chosen.items() for row in _rows(same, slots.get(f"{key.rpartition('.')[0]}.", 0)))
    return "| setting | default | meaning |\n|---|---|---|\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _rows(fields: list[SchemaField], kinds: int) -> Iterator[tuple[str, str, str]]:
    """A row for a setting; settings of several of the `kinds` of a slot share one if they mean the same."""
    for meaning in dict.fromkeys(field.meaning for field in fields):
        same = [field for field in fields if field.meaning == meaning]
        defaults = dict.fromkeys(_default(field) for field in same)
        options = [name for name in same[0].options if name not in ("true", "false")]
        missing = [name for name in options if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", meaning)]
        text = f"{meaning} ({', '.join(options)})" if missing else meaning
        if len(same) < kinds and not same[0].kinds:
            text = f"{', '.join(str(kind_of(field.group)) for field in same)}: {text}"
        yield f"`{same[0].key}`", ", ".join(defaults), text.replace("|", "\\|")


def _default(field: SchemaField) -> str:
    default = field.default
    if isinstance(default, str):
        return f"`{default}`".replace("|", "\\|") if default else '`""`'
    return f"`{to_toml(default)}`" if isinstance(default, bool | int | float | tuple) else ""


def rewritten(page: str) -> str:
    """A page with its tables of settings made anew."""
    return MARK.sub(lambda found: found["mark"] + table(found["task"], found["family"], found["keys"].split()), page)


if __name__ == "__main__":
    for path in sorted(DOCS.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        if (new := rewritten(text)) != text:
            path.write_text(new, encoding="utf-8")
            print(path)
