"""Laws of every family, at size tiny and with every slot variant."""

from dataclasses import replace

import pytest
from helpers.families import CASES, LOOSE, MEDIA_CASES, case_subject, modality_of, output_of

from regard.config.family import family_of
from regard.config.registry import FAMILIES
from regard.testing import LAWS, laws_of, outputs_of


@pytest.mark.parametrize(
    ("law", "case"),
    [
        pytest.param(law, case, id=f"{law} {' '.join(case)}")
        for law in LAWS
        for case in CASES + MEDIA_CASES
        if law in laws_of(modality_of(case), output_of(case))
        if not (law == "learning" and law in LOOSE.get(case, ()))
    ],
)
def test_law(law, case):
    subject = case_subject(case)
    if law == "packing":
        assert refuses_packed_rows(subject) == ("packing" in LOOSE.get(case, ()))
    if law == "batch_invariance" and law in subject.exempt:
        with pytest.raises(AssertionError, match="depends on the other rows"):
            LAWS[law](subject)
        subject.probe.processor = replace(subject.probe.processor, resize=(16, 32))  # images of one size keep it
    LAWS[law](subject)


def refuses_packed_rows(subject) -> bool:
    try:
        subject.read_packed(subject.sample(6, 3, 8))
    except ValueError as error:
        assert "cannot pack" in str(error)
        return True
    return False


@pytest.mark.parametrize("name", FAMILIES)
def test_every_output_of_a_family_has_a_case(name):
    outputs = {(modality_of(case), output_of(case)) for case in CASES + MEDIA_CASES if case[0] == name}
    assert outputs == set(outputs_of(family_of(name)))
