"""Writers of results, one per format. A verb chooses a writer once, and `write_results` gives it every result."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..errors import UserError
from ..files import json_line
from ..messages.base import to_json
from .files import Output, results_of
from .inputs import Entry, InputFile
from .records import Record, merge_record

if TYPE_CHECKING:
    from ..tasks.predictor import AnyPredictor


class ResultWriter(ABC):
    """Writes the results of a verb in one format."""

    details = False  # True: it needs results with details

    @abstractmethod
    def write(self, output: Output) -> None:
        """Write a result."""

    def skip(self, entry: Entry, error: UserError) -> None:
        """Write that an item cannot be read (data.invalid=skip)."""
        return

    def end(self) -> None:
        """Finish after the last result."""
        return


class LineWriter(ResultWriter):
    """A line for each item on stdout; of an item in a record, the record with the result."""

    def __init__(self, predictor: "AnyPredictor") -> None:
        self.predictor, self.reader = predictor, predictor.item_reader

    def write(self, output: Output) -> None:
        record, field = output.entry.record, self.reader.result_field
        if record is None or field is None:
            line = self.predictor.format_line(output.entry.name, output.request, output.result)
            sys.stdout.write(line + "\n")
            return
        result = self.predictor.plain_result(output.request, output.result)
        column = self._column(record)
        print(json_line(merge_record(record, {field: result}) if column is None else record | {column: result}))

    def skip(self, entry: Entry, error: UserError) -> None:
        print(f"{entry.name}\t" if self.reader.files and self.reader.files.named else "")

    def _column(self, record: Record) -> str | None:
        """The column of the target in a record, such as `tags`."""
        lower = [name.lower() for name in record]
        places = (place for role in self.reader.roles[1:] for place in role.find(lower, ()))
        return next((list(record)[place] for place in places), None)


class RecordWriter(ResultWriter):
    """A JSON record for each item on stdout, with the name of its file or the fields of its own record."""

    details = True

    def write(self, output: Output) -> None:
        record, entry = to_json(output.result), output.entry
        if entry.name:
            record = {"path": entry.name, **record}
        elif entry.record is not None:
            record = merge_record(entry.record, record)
        print(json_line(record))

    def skip(self, entry: Entry, error: UserError) -> None:
        print(json_line({"path": entry.name, "error": str(error)}))


class SeveralWriters(ResultWriter):
    """Results in several formats."""

    def __init__(self, writers: Sequence[ResultWriter]) -> None:
        self.writers = writers

    def write(self, output: Output) -> None:
        for writer in self.writers:
            writer.write(output)

    def skip(self, entry: Entry, error: UserError) -> None:
        for writer in self.writers:
            writer.skip(entry, error)

    def end(self) -> None:
        for writer in self.writers:
            writer.end()


def stdout_writer(predictor: "AnyPredictor", details: bool) -> ResultWriter:
    """The writer of lines or, with `details` and for results that have no line, of JSON records."""
    files = predictor.item_reader.files
    return RecordWriter() if details or (files is not None and files.as_records) else LineWriter(predictor)


def write_results(predictor: "AnyPredictor", sources: Iterable[InputFile], writer: ResultWriter) -> int:
    """Write the result of every item as it comes, and return how many items were skipped."""
    skipped = 0
    for outputs in results_of(predictor, sources, writer.details):
        try:
            for output in outputs:
                if output.error is None:
                    writer.write(output)
                    continue
                skipped += 1
                print(f"regard: {output.error}", file=sys.stderr)
                writer.skip(output.entry, output.error)
        finally:
            sys.stdout.flush()
    writer.end()
    return skipped
