"""Embedded dates: the target is a function of the source, and no date is in two splits."""

import datetime
import os
import re
import subprocess
import sys

import pytest
from babel import dates

from regard.errors import UserError
from regard.synthetic import dates as synthetic_dates
from regard.synthetic.dates import SourceFormats, locale, make_dates, split_of_date

LOCALES = [("en", "de"), ("fr", "es"), ("ja", "en"), ("ar", "en"), ("de", "sv"), ("zh-Hant", "hi")]


@pytest.fixture(scope="module", params=LOCALES, ids="-".join)
def parts(request):
    return make_dates(request.param, 4000, seed=1)


def test_the_target_is_a_function_of_the_source(parts):
    found: dict[str, str] = {}
    for part in parts.values():
        for source, target in part:
            assert found.setdefault(source, target) == target


def test_no_text_is_empty(parts):
    assert all(text.strip() for part in parts.values() for pair in part for text in pair)
    assert [len(parts[name]) for name in ("train", "valid", "test")] == [4000, 1000, 1000]


def test_sources_are_varied_and_splits_disjoint(parts):
    sources = {name: {source for source, _ in part} for name, part in parts.items()}
    assert len(sources["train"]) > 3900 and len(sources["test"]) == 1000
    assert not sources["train"] & (sources["valid"] | sources["test"]) and not sources["valid"] & sources["test"]


MONTHS = ["Januar", "Februar", "März", "April", "Mai", "Juni", "Juli", "August"]
MONTHS += ["September", "Oktober", "November", "Dezember"]


def german(text: str) -> tuple[datetime.date, str]:
    """The date and the rest of a German target."""
    found = re.fullmatch(r"((?:\w+, )?)(\d+)\. (\w+) (\d{4})((?:, \d\d:\d\d)?)", text)
    assert found, text
    weekday, day, month, year, time = found.groups()
    return datetime.date(int(year), MONTHS.index(month) + 1, int(day)), weekday + time


def test_no_date_is_in_two_splits():
    found = {
        name: {german(target)[0] for _, target in part} for name, part in make_dates(("en", "de"), 5000, 1).items()
    }
    assert len(found["test"]) == len(found["valid"]) == 1000
    assert (
        not found["train"] & found["test"]
        and not found["train"] & found["valid"]
        and not found["valid"] & found["test"]
    )
    assert all(split_of_date(day) == name for name, days in found.items() for day in days)
    assert min(found["train"]).year < 1905 and max(found["train"]).year > 2094


def test_target_has_the_content_of_the_source():
    """Parse the English source: the target has the same date, weekday, hour and minute."""
    months = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
    days = {"mon": "Mo", "tue": "Di", "wed": "Mi", "thu": "Do", "fri": "Fr", "sat": "Sa", "sun": "So"}
    kinds = set()
    for source, target in make_dates(("en", "de"), 3000, 2)["train"]:
        date, rest = german(target)
        words = re.findall(r"[a-z]+", source.lower())
        month = next(months.index(word[:3]) + 1 for word in words if word[:3] in months)
        year = re.search(r"\d{4}", source)[0]
        time = re.search(r"(\d+):(\d\d)(?::\d\d)?\u202f([AaPp])[Mm]", source)
        bare = source.replace(year, "").replace(time[0] if time else "", "")
        assert (date.year, date.month, date.day) == (int(year), month, int(re.search(r"\d+", bare)[0])), (
            source,
            target,
        )
        weekday = next((days[word[:3]] for word in words if word[:3] in days), "")
        assert rest.startswith(weekday) if weekday else not rest[:1].isalpha(), (source, target)
        if time:
            hour = int(time[1]) % 12 + 12 * (time[3].lower() == "p")
            assert rest.endswith(f", {hour:02}:{time[2]}"), (source, target)
        else:
            assert ":" not in target
        kinds.add((bool(weekday), bool(time)))
    assert len(kinds) == 4


def test_sources_have_noise():
    sources = [source for source, _ in make_dates(("en", "de"), 2000, 1)["train"]]
    for oddity in ("\u202f", "\u00a0", "  "):
        assert 20 < sum(oddity in source for source in sources) < 1500
    assert sum(source.isupper() for source in sources) > 100 and sum(source.islower() for source in sources) > 100
    assert sum(source[-1] in ".!;" for source in sources) > 100
    assert not any(re.search(r"\d[/.-]\d+[/.-]\d", source) for source in sources)


def test_seed_and_size_change_training_only():
    first, other, more = (
        make_dates(("en", "de"), 300, 1),
        make_dates(("en", "de"), 300, 2),
        make_dates(("en", "de"), 400, 1),
    )
    assert list(first["train"]) != list(other["train"])
    assert first["train"].fingerprint() != other["train"].fingerprint()
    for name in ("valid", "test"):
        assert list(first[name]) == list(other[name]) == list(more[name])
        assert first[name].fingerprint() == other[name].fingerprint()


def test_data_are_equal_in_another_process():
    code = "from regard.synthetic.dates import make_dates\nfor part in make_dates(('en', 'de'), 200, 7).values(): print(part.fingerprint())"
    env = os.environ | {"PYTHONHASHSEED": "5"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [part.fingerprint() for part in make_dates(("en", "de"), 200, 7).values()]


def test_dates_are_examples():
    test = make_dates(("en", "de"), 1, 1)["test"]
    test.require_nonempty("data.test")
    assert test.counts == {"examples": 1000} and test.report() == []
    assert test.location(4) == "embedded en-de test data, example 5"
    assert list(test.texts(1))[:2] == [test[0][1], test[1][1]] and len(test.texts(0, 1)) == 2000


def written(form: synthetic_dates.DateFormat, moment: datetime.datetime) -> str:
    return synthetic_dates.MARKS.sub("", form(moment))


def test_ambiguous_formats_are_left_out(monkeypatch):
    moment = datetime.datetime(2021, 3, 5, 15, 4)
    monkeypatch.setattr(synthetic_dates, "OWN_DATES", ("dd/MM/y", "MM/dd/y", "d MMM yy", "d MMMMM y", "d MMMM y"))
    place = locale("en")
    spelled = [written(form, moment) for form, _ in SourceFormats(place).dates]
    assert "05/03/2021" in spelled and "5 March 2021" in spelled
    assert not {"03/05/2021", "5 Mar 21", "5 M 2021"} & set(spelled)
    no_period = synthetic_dates.unambiguous([dates.parse_pattern("h:mm")], place, synthetic_dates.time_probes())
    assert no_period == []


@pytest.mark.parametrize("name", ["en", "fi", "ja"])
def test_names_weekday(name):
    place, moment = locale(name), datetime.datetime(2021, 3, 5)
    words = {place.days[kind][size][4] for kind in place.days for size in ("wide", "abbreviated")}  # Friday
    named = [(weekday, any(word in form(moment) for word in words)) for form, weekday in SourceFormats(place).dates]
    assert all(said == found for said, found in named) and len(set(named)) == 2


def test_locale_without_unambiguous_formats_gets_plain_ones(monkeypatch):
    monkeypatch.setattr(synthetic_dates, "unambiguous", lambda *_: [])
    source = SourceFormats(locale("en"))
    moment = datetime.datetime(2021, 3, 5, 15, 4)
    assert [written(form, moment) for form, _ in source.dates] == ["2021-03-05"]
    assert [written(form, moment) for form in source.times] == ["15:04"]


@pytest.mark.parametrize(
    "name, words",
    [
        ("xx", "'xx' is not a locale"),
        ("en_QQ", "nearest are .*en_"),
        ("klingon!", "not a locale"),
        ("", "not a locale"),
    ],
)
def test_unknown_locale_is_an_error(name, words):
    with pytest.raises(UserError, match=words):
        make_dates((name, "de"), 10, 1)
    with pytest.raises(UserError, match="data.locales"):
        make_dates(("en", name), 10, 1)
