"""Laws of every family, at size tiny and with every slot variant."""

import pytest
from helpers.families import CASES, LOOSE, case_subject, output_of

from regard.config.run import family_of
from regard.families import FAMILIES
from regard.testing import LAWS, laws_of, outputs_of


@pytest.mark.parametrize(
    ("law", "case"),
    [
        pytest.param(law, case, id=f"{law} {' '.join(case)}")
        for law in LAWS
        for case in CASES
        if law in laws_of("tokens", output_of(case))
    ],
)
def test_law(law, case):
    subject = case_subject(case)
    if law == "packing":
        assert refuses_packed_rows(subject) == ("packing" in LOOSE.get(case, ()))
    LAWS[law](subject)


def refuses_packed_rows(subject) -> bool:
    try:
        subject.packed(subject.sample(6, 3, 8))
    except ValueError as error:
        assert "cannot pack" in str(error)
        return True
    return False


@pytest.mark.parametrize("name", FAMILIES)
def test_every_output_of_a_family_has_a_case(name):
    outputs = {("tokens", output_of(case)) for case in CASES if case[0] == name}
    assert outputs == set(outputs_of(family_of(name)))
