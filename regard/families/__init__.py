"""One short file per family: Config, SIZES, SPEC and Model, whose constructor wires parts as the paper's figure does.

What several families share is a part; what reads or writes files is a processor or a format. `protocols.py` has the
types of models, `base.py` their common methods, `seq2seq.py` common settings, `spec.py` what a family declares. Where
models differ by task, Config.head names the task.
"""

from typing import TYPE_CHECKING, cast

from ..config.family import family_of

if TYPE_CHECKING:
    from .protocols import Family


def family(name: str) -> "Family":
    """The module of a family by name."""
    return cast("Family", family_of(name))
