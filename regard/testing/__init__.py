"""Tests for families, built-in or a user's own: the laws that every family keeps, as functions.

Tests of the package itself are in the folder `tests` of the repository.
"""

from ..config.merge import Settings
from ..errors import UserError
from ..families import family as find_family
from ..families.protocols import Family
from ..families.spec import Output
from ..parts.inputs import TensorKind
from .laws import LAWS, laws_of
from .probes import PROBES
from .subjects import SUBJECTS, Subject
from .tasks import check_task

__all__ = ["LAWS", "BrokenLaw", "Subject", "check_family", "check_task", "laws_of", "make_subject", "outputs_of"]


class BrokenLaw(UserError):
    """A family violates a law."""


def outputs_of(family: Family) -> list[tuple[TensorKind, Output]]:
    """The pairs to test of a family: each modality that it reads with each output that it writes."""
    spec = family.SPEC
    for verb, declared, tested in (("reads", spec.reads, PROBES), ("writes", spec.writes, SUBJECTS)):
        if not declared & tested.keys():
            declaration = ", ".join(sorted(declared)) or "nothing"
            raise UserError(f"{family.__name__} {verb} {declaration}; there are laws for {', '.join(tested)} (SPEC)")
    outputs, modalities = spec.writes & SUBJECTS.keys(), spec.reads & PROBES.keys()
    return [(modality, output) for modality in sorted(modalities) for output in sorted(outputs)]


def make_subject(family: Family, modality: TensorKind, output: Output, settings: Settings | None = None) -> Subject:
    """A small model of the family, with these settings of its config."""
    return SUBJECTS[output](family, output, PROBES[modality](), settings or {})


def check_family(family: Family | str, settings: Settings | None = None) -> list[str]:
    """Check all laws on a family at size tiny, for each of its modalities and outputs; return what was checked.

    `family` is a module, or the name of a registered family; `settings` change its config. The first broken law raises
    BrokenLaw, which says what is wrong.
    """
    module = find_family(family) if isinstance(family, str) else family
    checked = []
    for modality, output in outputs_of(module):
        for name, law in laws_of(modality, output).items():
            subject = make_subject(module, modality, output, settings)  # a law may change its model
            description = f"{subject.config.family}, {modality} to {output}"
            try:
                law(subject)
            except Exception as error:
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                raise BrokenLaw(
                    f"{description}: {reason}; {name} is a law of every family (regard.testing.laws)"
                ) from error
            checked.append(f"{description}: {name}")
    return checked
