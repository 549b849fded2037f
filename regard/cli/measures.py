"""The measurements of `look`: heads and dependency trees, effects of heads, links of a word, attribution, lens."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UserError
from ..files import JsonObject, atomic_write, check_picture_path, json_line
from .io import check_exclusive, printed_facts

if TYPE_CHECKING:
    from ..measure.deletion import DeletionReport
    from ..measure.head_effect import EffectReport
    from ..measure.head_report import HeadReport
    from ..measure.lens import Lens
    from ..measure.ngram_report import NGramReport
    from ..tasks.classify.items import TextItem
    from ..tasks.predictor import AnyPredictor

HeadsData = Annotated[
    str | None,
    typer.Option(
        "--heads",
        metavar="CONLLU",
        help="Report which dependency relations each head finds in these trees; --data has others to measure on.",
    ),
]
MeasureData = Annotated[
    str | None, typer.Option("--data", metavar="SIDES", help="Data for --heads, --effect, --deletion and --ngrams.")
]
EffectFlag = Annotated[bool, typer.Option("--effect", help="Measure what muting each head costs on the test data.")]
WordOption = Annotated[
    str | None, typer.Option("--word", metavar="WORD", help="Print what this word of TEXT attends to in every head.")
]
LensFlag = Annotated[bool, typer.Option("--lens", help="Print what the model would say after each layer.")]
SaliencyFlag = Annotated[bool, typer.Option("--saliency", help="Print how much each token contributes to the output.")]
DeletionFlag = Annotated[
    bool, typer.Option("--deletion", help="Compare attributions: delete the tokens that each finds important.")
]
NGramsFlag = Annotated[
    bool, typer.Option("--ngrams", help="Print the n-grams that contribute most to each label, of TEXT or of --data.")
]
ExamplesOption = Annotated[
    int, typer.Option("--examples", metavar="N", help="Texts of the data that --deletion and --ngrams read.")
]
NormsFlag = Annotated[bool, typer.Option("--norms", help="Show norm-weighted attention in place of the weights.")]


@dataclass(frozen=True)
class Measure:
    """The options of `look` that measure something instead of showing attention."""

    heads: str | None = None
    data: str | None = None
    effect: bool = False
    word: str | None = None
    lens: bool = False
    saliency: bool = False
    deletion: bool = False
    examples: int = 100
    ngrams: bool = False

    @property
    def is_selected(self) -> bool:
        """True if one of them is given; several, or --data without one, are an error."""
        options = {"heads": self.heads is not None, "effect": self.effect, "word": self.word is not None}
        options |= {"lens": self.lens, "saliency": self.saliency, "deletion": self.deletion, "ngrams": self.ngrams}
        check_exclusive(**options)
        if self.data is not None and not (self.heads is not None or self.effect or self.deletion or self.ngrams):
            raise UserError(
                f"--data is {self.data}, but only --heads, --effect, --deletion and --ngrams read data; leave it out"
            )
        return any(options.values())

    @property
    def reads_text(self) -> bool:
        return self.lens or self.saliency or self.word is not None


def run_measure(predictor: "AnyPredictor", measure: Measure, texts: Sequence[str], out: Path | None) -> None:
    """Print one measurement as a table and write it to `out`: .json, or a picture where there is one."""
    items = as_pair(predictor, texts)
    if measure.reads_text and not 1 <= len(items) <= 2:
        raise UserError(f'give a text and perhaps its target, not {len(texts)} texts; put each into "…"')
    if texts and not measure.reads_text and (not measure.ngrams or measure.data is not None):
        raise UserError(f"{texts[0]!r:.60} is a text, but this measurement reads data; leave it out, or use --data")
    drawn = not measure.reads_text and not measure.ngrams
    if out is not None and out.suffix != ".json" and not drawn:
        raise UserError(f"--out is {out}, but this measurement has no picture; expected a .json file")
    if out is not None and out.suffix != ".json":
        check_picture_path(out)
    with printed_facts():
        if measure.heads is not None:
            report: Any = print_heads(predictor, measure.heads, measure.data)
        elif measure.effect:
            report = print_effect(predictor, measure.data)
        elif measure.deletion:
            report = print_deletion(predictor, measure.data, measure.examples)
        elif measure.lens:
            report = print_lens(predictor, texts)
        elif measure.saliency:
            report = print_saliency(predictor, items)
        elif measure.ngrams:
            report = print_ngrams(predictor, items, measure.data, measure.examples)
        else:
            report = print_word(predictor, texts, str(measure.word))
    if out is not None and out.suffix == ".json":
        with atomic_write(out) as draft:
            draft.write_text(
                json_line(report if isinstance(report, dict) else report.record()) + "\n", encoding="utf-8"
            )
    elif out is not None:
        report.draw(out)
    if out is not None:
        print("file" if out.suffix == ".json" else "picture", out, file=sys.stderr)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as their widest cell; numbers are on the right."""
    cells = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row] for row in rows]
    table = [list(header), *cells]
    widths = [max(len(row[i]) for row in table) for i in range(len(header))]
    right = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(header))]
    for row in table:
        line = (
            cell.rjust(width) if r else cell.ljust(width) for cell, width, r in zip(row, widths, right, strict=True)
        )
        print("  ".join(line).rstrip())


def print_heads(predictor: "AnyPredictor", data: str, test: str | None) -> "HeadReport":
    """Print how well heads find dependency relations and which patterns they have; return the report."""
    from ..measure.head_report import report_heads

    report = report_heads(predictor, data, test)
    print(f"{report.sentences:,} sentences, {report.words:,} words of {report.test}")
    print(f"heads and offsets chosen on {report.data}" + ("; only links to earlier words" if report.causal else ""))
    print(*filter(None, [report.note]), sep="\n", end="\n" if report.note else "")
    print()
    print_table(
        ["relation", "direction", "links", "head", "chosen", "accuracy", "offset", "accuracy of the offset"],
        [
            (e.relation, e.direction, e.links, e.head, e.chosen, e.accuracy, f"{e.offset:+d}", e.offset_accuracy)
            for e in report.relations
        ],
    )
    print()
    print_table(
        ["head", *report.heads[0].patterns, "best relation", "direction", "accuracy", "best offset"],
        [(e.head, *e.patterns.values(), e.relation, e.direction, e.accuracy, e.offset_accuracy) for e in report.heads],
    )
    return report


def print_effect(predictor: "AnyPredictor", data: str | None) -> "EffectReport":
    """Print what muting each head costs, the costliest first; return the report."""
    from ..config.run import parse_data_files
    from ..measure.head_effect import measure_effect

    progress = (lambda line: print(f"regard: {line}", file=sys.stderr)) if sys.stderr.isatty() else lambda line: None
    report = measure_effect(predictor, None if data is None else parse_data_files(data), progress)
    print(f"{report.metric} {report.score:.4f} with all heads, {report.without_heads:.4f} with all heads muted")
    if report.ngrams_alone is not None:
        print(f"{report.metric} {report.ngrams_alone:.4f} from n-grams alone, which no head takes part in")
    print("muting a head costs")
    ranked = sorted(report.heads, key=lambda effect: -effect.zero)
    print_table(
        ["head", "zero", "mean"], [(effect.head, f"{effect.zero:+.5f}", f"{effect.mean:+.5f}") for effect in ranked]
    )
    return report


def print_deletion(predictor: "AnyPredictor", data: str | None, examples: int) -> "DeletionReport":
    """Print how far the probability falls when the most important tokens are deleted; return the report."""
    from ..config.run import parse_data_files
    from ..measure.deletion import deletion_report

    report = deletion_report(predictor, None if data is None else parse_data_files(data), examples)
    print(f"{report.texts} texts; the mean fall of the probability after deleting the most important tokens")
    header = ["method", "AOPC", "error", *(f"{share:.0%}" for share in report.shares)]
    print_table(header, [(curve.method, curve.aopc, curve.error, *curve.falls) for curve in report.curves])
    return report


def print_lens(predictor: "AnyPredictor", texts: Sequence[str]) -> "Lens":
    """Print the likeliest token after every layer, at each position; return what the lens found."""
    from ..measure.lens import lens

    result = lens(predictor, texts[0], texts[1] if len(texts) > 1 else None)
    header = ["token", *(f"layer {number}" for number in range(1, len(result.layers) + 1))]
    rows = [
        (repr(place), *(f"{row[i].tokens[0]!r} {row[i].probabilities[0]:.2f}" for row in result.layers))
        for i, place in enumerate(result.places)
    ]
    print_table(header, rows)
    return result


def as_pair(predictor: "AnyPredictor", texts: Sequence[str]) -> "list[TextItem]":
    """The texts; for a model that reads pairs, the first two as one item."""
    if getattr(predictor, "pairs", False) and len(texts) > 1:
        return [tuple(texts[:2]), *texts[2:]]
    return [*texts]


def print_ngrams(
    predictor: "AnyPredictor", items: "Sequence[TextItem]", data: str | None, examples: int
) -> "NGramReport":
    """Print how much n-grams carry, and the n-grams that contribute most to each label; return the report."""
    from ..config.run import parse_data_files
    from ..measure.ngram_report import report_ngrams

    files = None if data is None else parse_data_files(data)
    report = report_ngrams(predictor, items or None, files, examples)
    print(f"{report.texts} text{'s' * (report.texts != 1)}; the mean lead of the predicted label over the next:")
    print(f"encoder {report.encoder:+.3f}, n-grams {report.ngrams:+.3f} ({report.ngram_share:.0%})")
    rows = [(label, entry.text, entry.kind, entry.value) for label, found in report.top.items() for entry in found]
    print_table(["label", "n-gram", "kind", "contribution"], [(a, repr(b), c, d) for a, b, c, d in rows])
    return report


def print_saliency(predictor: "AnyPredictor", items: "Sequence[TextItem]") -> JsonObject:
    """Print the attribution of an output to the tokens of its input; return it as a dict."""
    from dataclasses import asdict

    from ..measure.attribution import saliency

    text, target = items[0], items[1] if len(items) > 1 else None
    result = saliency(predictor, text, None if target is None else str(target))
    start = "mean embeddings" if result.ngram_share is None else "mean embeddings and no n-grams"
    print(f"output {result.output!r}, log-probability {result.logprob:.4f}; {result.baseline:.4f} for {start}")
    columns = {"gradient × input": result.gradient_input, "integrated gradients": result.integrated_gradients}
    if result.ngram_share is not None:
        print(f"n-grams carry {result.ngram_share:.0%} of the difference, the encoder {1 - result.ngram_share:.0%}")
        columns = {
            "gradient × input": result.gradient_input, "of n-grams": result.ngram_gradient_input,
            "integrated gradients": result.integrated_gradients, "of its n-grams": result.ngram_integrated_gradients,
        }  # fmt: skip
    print_table(["token", *columns], list(zip(map(repr, result.tokens), *columns.values(), strict=True)))
    return {**asdict(result), "ngram_share": result.ngram_share}


def print_word(predictor: "AnyPredictor", texts: Sequence[str], word: str) -> JsonObject:
    """Print what a word of a text attends to, head by head; return the word with its links."""
    from ..measure.head_report import word_links

    if len(texts) > 1:
        raise UserError("--word reads one text, without a target; leave the target out")
    links_by_head = word_links(predictor, texts[0], word)
    print_table(
        ["head", f"{word!r} attends to"],
        [(head, ", ".join(f"{name} {weight:.2f}" for name, weight in links)) for head, links in links_by_head.items()],
    )
    return {"word": word, "heads": links_by_head}
