"""The Python example of the README that a conversion writes."""

import contextlib
import io
from pathlib import Path


def output_of_example(readme: Path, text: str) -> str:
    """What the example prints for a text, in a namespace of its own and in the folder of its README."""
    code = readme.read_text().split("```python\n")[1].split("```")[0].replace("a sentence", text)
    printed = io.StringIO()
    with contextlib.chdir(readme.parent), contextlib.redirect_stdout(printed):
        exec(compile(code, str(readme), "exec"), {"__name__": "__main__"})
    return printed.getvalue()
