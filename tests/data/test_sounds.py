"""Recordings with transcripts from tables, folders, archives and memory; those that cannot be used are named."""

import io
import json
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from regard.config.data.sound import SoundData
from regard.data.sources import sounds
from regard.data.sources.data_files import as_data_files
from regard.data.sources.holdout import hold_out
from regard.data.sources.sounds import TRANSCRIBED_SOUNDS
from regard.errors import UserError
from regard.processors.base import FileBytes
from regard.processors.sound.read import Samples, read_sound, sound_name

TEXTS = ["hello there", "how are you", "fine"]
RATE = 8000
WAVES = [0.5 * np.sin(np.arange(800 * (number + 2)) * 0.3).astype(np.float32) for number in range(3)]
SECONDS = [0.2, 0.3, 0.4]


def encoded(number: int, format: str = "WAV") -> bytes:
    out = io.BytesIO()
    soundfile.write(out, WAVES[number], RATE, format=format)
    return out.getvalue()


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def make_folder(folder: Path) -> Path:
    """A text beside each recording."""
    for number, (text, suffix) in enumerate(zip(TEXTS, ("wav", "flac", "ogg"), strict=True)):
        write(folder / "speaker" / f"{number}.{suffix}", encoded(number, suffix.upper()))
        write(folder / "speaker" / f"{number}.txt", f"{text}\n")
    return folder


def make_librispeech(folder: Path) -> Path:
    for number in range(3):
        write(folder / "19" / "198" / f"19-198-000{number}.flac", encoded(number, "FLAC"))
    lines = [f"19-198-000{number} {text.upper()}" for number, text in enumerate(TEXTS)]
    write(folder / "19" / "198" / "19-198.trans.txt", "\n".join([*lines, "19-198-0009 NO RECORDING", ""]))
    write(folder / "README.TXT", "about the corpus")
    return folder


def pack(folder: Path, name: str) -> Path:
    path = folder.parent / name
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    if name.endswith(".zip"):
        with zipfile.ZipFile(path, "w") as archive:
            for file in files:
                archive.write(file, f"all/{file.relative_to(folder).as_posix()}")
    else:
        with tarfile.open(path, "w:gz" if name.endswith("gz") else "w") as tar:
            for file in files:
                tar.add(file, f"all/{file.relative_to(folder).as_posix()}")
    return path


def read(*places: object, **data: Any) -> Any:
    return TRANSCRIBED_SOUNDS.open((tuple(map(str, places)),), SoundData(**data))


def read_memory(rows: Any, **data: Any) -> Any:
    return TRANSCRIBED_SOUNDS.open(as_data_files(rows, "data.train"), SoundData(**data))


def texts(examples: Any) -> list[str]:
    return [examples.text(index, 1) for index in range(len(examples))]


def check(examples: Any, wanted: list[str] = TEXTS) -> None:
    """The recordings, their lengths and their texts."""
    assert [text for _, text in examples] == texts(examples) == wanted
    for index, (raw, _) in enumerate(examples):
        sound = read_sound(raw, RATE)
        assert sound.rate == RATE and len(sound.samples) == len(WAVES[index])
        assert np.abs(sound.samples - WAVES[index]).mean() < 0.02  # OGG is lossy
    assert [examples.seconds(index) for index in range(3)] == pytest.approx(SECONDS)


# --- every source ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "a.zip", "a.tar", "a.tar.gz"])
@pytest.mark.parametrize("make", [make_folder, make_librispeech])
def test_folders_and_archives(make: Any, kind: str, tmp_path: Path) -> None:
    folder = make(tmp_path / "sounds")
    place = folder if kind == "folder" else pack(folder, kind)
    examples = read(place)
    known = make is make_folder
    check(examples, TEXTS if known else [text.upper() for text in TEXTS])
    assert examples.report() == ([] if known else ["1 transcripts left out because they have no recording"])
    assert examples.fingerprint() == read(place).fingerprint()
    assert ("speaker/1.flac" if known else "19-198-0001.flac") in examples.location(1)
    names = [name for name, _ in TRANSCRIBED_SOUNDS.items(str(place), SoundData())]
    assert names == [examples.location(index) for index in range(3)]


TABLES = {
    "csv": lambda rows: "id,file_name,sentence\n" + "".join(f"7,{path},{text}\n" for path, text in rows),
    "tsv": lambda rows: "".join(f"{path}\t{text}\n" for path, text in rows) + "\n",
    "common.tsv": lambda rows: "client_id\tpath\tsentence\n" + "".join(f"a\t{path}\t{text}\n" for path, text in rows),
    "jsonl": lambda rows: "".join(
        json.dumps({"audio_filepath": path, "duration": 1.0, "text": text}) + "\n" for path, text in rows
    ),
    "json": lambda rows: json.dumps([{"wav": path, "transcript": text} for path, text in rows]),
}


@pytest.mark.parametrize("kind", [*TABLES, "parquet"])
def test_tables(kind: str, tmp_path: Path) -> None:
    make_folder(tmp_path / "clips")
    rows = [(f"clips/speaker/{number}.{suffix}", TEXTS[number]) for number, suffix in enumerate(("wav", "flac", "ogg"))]
    table = tmp_path / f"list.{kind}"
    if kind == "parquet":
        arrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet

        columns = {"path": [path for path, _ in rows], "transcription": TEXTS}
        pyarrow.parquet.write_table(arrow.table(columns), table)
    else:
        table.write_text(TABLES[kind](rows))
    examples = read(table)
    check(examples)
    assert "list." in examples.location(1) and examples.fingerprint() == read(table).fingerprint()
    named = list(TRANSCRIBED_SOUNDS.items(str(table), SoundData()))
    assert [name for name, _ in named] == [str(tmp_path / path) for path, _ in rows]
    valid = hold_out(examples, 0.3, "valid")
    assert valid.seconds(0) == examples.seconds(texts(examples).index(valid.text(0, 1)))


def memory_rows() -> dict[str, Any]:
    import torch

    pairs = list(zip(WAVES, TEXTS, strict=True))
    dicts = [{"array": wave, "sampling_rate": RATE, "path": None} for wave in WAVES]
    stored = [{"bytes": encoded(number), "path": f"{number}.wav"} for number in range(3)]
    return {
        "sounds": [(Samples(wave, RATE), text) for wave, text in pairs],
        "pairs of samples and rate": [((wave, RATE), text) for wave, text in pairs],
        "tensors": [((torch.from_numpy(wave), RATE), text) for wave, text in pairs],
        "arrays at data.rate": pairs,
        "bytes": [(encoded(number), text) for number, text in enumerate(TEXTS)],
        "dicts": [{"audio": audio, "text": text} for audio, text in zip(dicts, TEXTS, strict=True)],
        "columns": {"audio": dicts, "sentence": TEXTS, "path": ["-"] * 3},
        "stored": [{"audio": audio, "file": "-", "text": text} for audio, text in zip(stored, TEXTS, strict=True)],
        "lists of numbers": [(wave.tolist(), text) for wave, text in pairs],
    }


@pytest.mark.parametrize("kind", [*memory_rows()])
def test_data_in_memory(kind: str) -> None:
    rows = memory_rows()[kind]
    examples = read_memory(rows, rate=RATE)
    check(examples)
    assert examples.fingerprint() == read_memory(memory_rows()[kind], rate=RATE).fingerprint()
    other = list(rows) if isinstance(rows, list) else {name: list(column) for name, column in rows.items()}
    if isinstance(other, list):
        other[0], other[1] = other[1], other[0]
        assert read_memory(other, rate=RATE).fingerprint() != examples.fingerprint()


def test_the_container_does_not_change_the_fingerprint() -> None:
    rows = memory_rows()
    kinds = ("sounds", "pairs of samples and rate", "tensors", "dicts", "columns")
    assert len({read_memory(rows[kind]).fingerprint() for kind in kinds}) == 1


@pytest.mark.parametrize("embedded", [True, False])
def test_hugging_face_data_sets(embedded: bool, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    audio = [
        {
            "bytes": encoded(number) if embedded else None,
            "path": str(write(tmp_path / f"{number}.wav", encoded(number))),
        }
        for number in range(3)
    ]
    columns = {"file": ["-"] * 3, "audio": audio, "text": TEXTS}
    dataset = datasets.Dataset.from_dict(columns).cast_column("audio", datasets.Audio())
    check(read_memory(dataset))
    dataset.to_parquet(tmp_path / "list.parquet")
    check(read(tmp_path / "list.parquet"))


@pytest.mark.parametrize("kind", ["sounds", "dicts", "stored"])
def test_iterables_are_written_once(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def generate() -> Iterator[Any]:
        yield from memory_rows()[kind]

    check(read_memory(generate()))


def test_silent_recordings_are_reported(tmp_path: Path) -> None:
    rows = []
    for name, samples in (("sound", np.sin(np.arange(RATE))), ("silent", np.zeros(RATE)), ("offset", np.full(9, 0.25))):
        soundfile.write(tmp_path / f"{name}.wav", samples, RATE)
        rows.append(f"{name}.wav\tE\n")
    (tmp_path / "a.tsv").write_text("".join(rows))
    examples = TRANSCRIBED_SOUNDS.open([[str(tmp_path / "a.tsv")]], SoundData())
    assert examples.notes(range(3)) == [f"2 recordings are silent; the first: {tmp_path}/a.tsv:2"]
    many = [(np.zeros(9) if number % 3 else np.arange(9) / 9, "E") for number in range(1000)]
    memory = TRANSCRIBED_SOUNDS.open(as_data_files(many, "data.train"), SoundData())
    (note,) = memory.notes(range(1000))
    assert note.split(";")[0] == "133 of 200 examined recordings are silent"


def test_several_places_are_one(tmp_path: Path) -> None:
    make_folder(tmp_path / "one")
    pack(make_librispeech(tmp_path / "two"), "b.zip")
    pack(tmp_path / "one", "a.zip")
    examples = read(tmp_path / "one", tmp_path / "b.zip")
    assert texts(examples) == [*TEXTS, *(text.upper() for text in TEXTS)]
    assert [examples.seconds(index) for index in range(6)] == pytest.approx(SECONDS * 2)
    assert "b.zip" in examples.location(4) and examples.report()[0].startswith(str(tmp_path / "b.zip: 1 transcripts"))
    assert texts(read(tmp_path / "*.zip")) == texts(examples)
    ((name, raw),) = TRANSCRIBED_SOUNDS.items(str(tmp_path / "one/speaker/0.wav"), SoundData())
    assert sound_name(raw) == name and len(read_sound(raw).samples) == len(WAVES[0])


# --- what cannot be used ---------------------------------------------------------------------------------------------

M4A = b"\0\0\0\x18ftypM4A " + bytes(40)
WEBM = b"\x1aE\xdf\xa3" + bytes(40)


def test_a_table_names_file_and_line(tmp_path: Path) -> None:
    write(tmp_path / "a.wav", encoded(0))
    write(tmp_path / "b.wav", encoded(1)[:-200])
    write(tmp_path / "c.m4a", M4A)
    write(tmp_path / "d.webm", WEBM)
    for name, words in (
        ("gone.wav", r"list\.tsv:2: there is no recording .*gone\.wav; correct the path or the line, or set data\.inv"),
        ("b.wav", r"list\.tsv:2: .*b\.wav is truncated"),
        ("c.m4a", r"list\.tsv:2: .*c\.m4a cannot be read as sound: it is M4A \(AAC\); convert it"),
        ("d.webm", r"list\.tsv:2: .*d\.webm cannot be read as sound: it is WebM"),
    ):
        table = write(tmp_path / "list.tsv", f"a.wav\tyes\n{name}\tno\na.wav\tagain\n")
        with pytest.raises(UserError, match=words):
            read(table)
        examples = read(table, invalid="skip")
        assert texts(examples) == ["yes", "again"] and examples.counts["unreadable"] == 1
        assert any(
            fact.startswith("1 recordings left out because they cannot be read (data.invalid=skip); the first: ")
            and name in fact
            for fact in examples.report()
        )


def test_empty_transcripts(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "sounds")
    write(folder / "speaker" / "1.txt", "\ufeff \n")
    libri = make_librispeech(tmp_path / "libri")
    lines = libri / "19" / "198" / "19-198.trans.txt"
    lines.write_bytes(lines.read_bytes().replace(b" HOW ARE YOU", b""))
    table = write(tmp_path / "list.csv", "path,text\nsounds/speaker/0.wav,yes\n\nsounds/speaker/0.wav, \n")
    for place, words in (
        (folder, r"speaker/1\.txt: the transcript is empty; write what is said, or set data\.invalid=skip"),
        (libri, r"19-198\.trans\.txt:2: the transcript is empty"),
        (table, r"list\.csv:4: the transcript is empty"),
    ):
        with pytest.raises(UserError, match=words):
            read(place)
        examples = read(place, invalid="skip")
        assert examples.counts["empty"] == 1 and len(examples) == (1 if place == table else 2)
        assert "1 examples left out because a side is empty" in examples.report()
    with pytest.raises(UserError, match="record 2: the transcript is empty"):
        read_memory([((WAVES[0], RATE), "yes"), ((WAVES[0], RATE), "")])


def test_recordings_and_transcripts_without_the_other(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "sounds")
    (folder / "speaker" / "1.txt").unlink()
    (folder / "speaker" / "2.ogg").unlink()
    write(folder / "speaker" / "notes.md", "no transcript")
    examples = read(folder)
    assert texts(examples) == TEXTS[:1] and examples.report() == [
        "1 recordings left out because they have no transcript",
        "1 transcripts left out because they have no recording",
    ]
    for name in ("0.txt", "2.txt"):
        (folder / "speaker" / name).unlink()
    with pytest.raises(UserError, match=r"has 2 recordings and no transcripts; .* such as speaker/0\.txt, or give a t"):
        read(folder)
    table = write(tmp_path / "list.csv", "path,text\nsounds/speaker/0.wav,yes\n,no\n")
    examples = read(table)
    assert texts(examples) == ["yes"] and "1 transcripts left out because they have no recording" in examples.report()


def test_long_recordings_are_never_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_folder(tmp_path / "sounds")
    rows = "".join(f"sounds/speaker/{number}\t{number}\n" for number in ("0.wav", "1.flac", "2.ogg"))
    table = write(tmp_path / "list.tsv", rows)
    decoded = []
    problem = sounds.sound_problem
    monkeypatch.setattr(sounds, "sound_problem", lambda raw, decode: decoded.append(raw) or problem(raw, decode))
    for place in (folder, table):
        examples = read(place, max_seconds=0.3)
        assert len(examples) == 2 and examples.counts["long"] == 1 and examples.seconds(1) == pytest.approx(0.3)
        assert "1 recordings left out because they are longer than data.max_seconds=0.3" in examples.report()
        assert not decoded
        assert len(read(place, max_seconds=0.3, invalid="skip")) == 2 and len(decoded) == 2
        decoded.clear()
    with pytest.raises(UserError, match="holds no example .3 recordings left out because they are longer than"):
        read(folder, max_seconds=0.1).require_nonempty("data.train")


def test_unreadable_recordings_in_a_folder(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "sounds")
    write(folder / "speaker" / "3.m4a", M4A)
    write(folder / "speaker" / "3.txt", "an apple")
    with pytest.raises(UserError, match=r"3\.m4a cannot be read as sound: it is M4A .* or set data\.invalid=skip to l"):
        read(folder)
    assert texts(read(folder, invalid="skip")) == TEXTS
    write(folder / "speaker" / "3.txt", b"caf\xe9")
    with pytest.raises(
        UserError, match=r"3\.txt: byte 4 of the line is 0xe9, which is not valid UTF-8; convert the fil"
    ):
        read(folder)
    examples = read(folder, invalid="skip")
    assert examples.counts["invalid"] == 1 and examples.counts["unreadable"] == 0
    with pytest.raises(UserError, match=r"a\.zip/all/speaker/3\.m4a"):
        write(folder / "speaker" / "3.txt", "an apple")
        read(pack(folder, "a.zip"))


def test_samples_that_are_no_sound() -> None:
    bad = np.array([0.1, np.nan, 0.2] * 100, np.float32)
    with pytest.raises(UserError, match=r"record 2: a sound has a sample that is no finite number"):
        read_memory([((WAVES[0], RATE), "yes"), ((bad, RATE), "no")])
    assert texts(read_memory([((WAVES[0], RATE), "yes"), ((bad, RATE), "no")], invalid="skip")) == ["yes"]
    with pytest.raises(UserError, match="record 1: no path or sound under 'path' but 3; correct it"):
        read_memory([(3, "yes")])
    raw, _ = read_memory([{"audio": {"bytes": encoded(0), "path": "x.wav"}, "text": "a"}])[0]
    assert isinstance(raw, FileBytes) and raw.place == "x.wav"


def test_places_that_have_no_examples(tmp_path: Path) -> None:
    write(tmp_path / "empty" / "a.txt", "text")
    write(tmp_path / "a.wav", encoded(0))
    write(tmp_path / "a.doc", "text")
    for place, words in (
        (tmp_path / "empty", r"empty has no recordings; expected files such as \.wav, \.flac or \.mp3"),
        (
            tmp_path / "a.wav",
            r"a\.wav is a recording without its transcript; give a table with the columns path and te",
        ),
        (tmp_path / "a.doc", r"a\.doc is no table, folder or archive; give a table"),
        (tmp_path / "gone.wav", r"there is no file .*gone\.wav"),
        (tmp_path / "gone.zip", r"gone\.zip does not exist; expected a folder or an archive"),
    ):
        with pytest.raises(UserError, match=words):
            read(place)
    with pytest.raises(UserError, match="recordings and transcripts are in one place, but 2 were given, separated by"):
        TRANSCRIBED_SOUNDS.open((("a",), ("b",)), SoundData())
    with pytest.raises(UserError, match="empty has no recordings"):
        TRANSCRIBED_SOUNDS.items(str(tmp_path / "empty"), SoundData())
    with pytest.raises(UserError, match=r"the columns are name, words, and none of them is known to be the path"):
        read(write(tmp_path / "odd.jsonl", '{"name": "a.wav", "words": "b"}\n'))


def test_other_recordings_have_another_fingerprint(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "sounds")
    table = write(tmp_path / "list.tsv", "sounds/speaker/0.wav\tyes\nsounds/speaker/1.flac\tno\n")
    before = {place: read(place).fingerprint() for place in (folder, table)}
    write(folder / "speaker" / "0.wav", encoded(2))
    after = {place: read(place).fingerprint() for place in (folder, table)}
    assert all(before[place] != after[place] for place in before)
    write(folder / "speaker" / "0.txt", "other words")
    write(table, "sounds/speaker/0.wav\tyes\nsounds/speaker/1.flac\tmaybe\n")
    assert all(read(place).fingerprint() != after[place] for place in after)
