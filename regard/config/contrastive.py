"""The settings of joint embeddings: pairs of an image, a recording or a text with a text."""

from collections import Counter
from typing import Annotated

from pydantic import BeforeValidator, Field, field_validator

from .audio import RecordingTable
from .types import Base, Count, Positive, Share, Strings, as_strings
from .vision import NamedImages

SLOT = "{}"  # the place of the label in a template


class ContrastiveData(NamedImages, RecordingTable):
    """Pairs. The settings of images apply to images, those of recordings to recordings."""

    max_tokens: Positive = 256  # longer texts are cut
    crop: Annotated[float, Field(gt=0, le=1)] = 0.9  # the smallest share of an image that training crops; 1: no crop
    flip: bool = False  # mirror half of the images; a text such as "left of" would no longer fit
    max_shapes: Annotated[int, Field(ge=1, le=3)] = 3  # of an embedded scene
    colors: Annotated[int, Field(ge=2, le=12)] = 6  # of embedded scenes
    shape_types: Annotated[int, Field(ge=2, le=8)] = 4  # of embedded scenes: circle, square …
    unnamed: Share = 0.0  # share of embedded training shapes in a color without a name; texts name the shape alone
    unseen: Strings = ()  # such as "red circle": combinations that only the embedded test data have
    unseen_valid: Strings = ()  # combinations that only the embedded validation data have
    locales: Annotated[tuple[str, str], BeforeValidator(as_strings)] = ("en", "de")  # of embedded pairs of texts
    examples: Positive = 20000  # embedded training pairs


class ContrastiveDecode(Base):
    """Embeddings, and the answers to labels."""

    labels: Strings = ()  # texts to choose from (predict --labels)
    template: str = SLOT  # the text of a label, such as "a photo of {}"
    top: Count = 0  # number of most likely labels, with probabilities; 0: the best one only
    normalize: bool = True  # embeddings have length 1
    batch: Positive = 32  # items per batch

    @field_validator("labels")
    @classmethod
    def _check_labels(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        labels = tuple(" ".join(label.split()) for label in value)
        if value and not all(labels):
            raise ValueError("it has an empty label; expected texts with a comma between them")
        if repeated := [label for label, count in Counter(labels).items() if count > 1]:
            raise ValueError(f"the label {repeated[0]!r} is given twice; give each once")
        if len(labels) == 1:
            raise ValueError(f"{labels[0]!r} is the only label; give at least two to choose from")
        return labels

    @field_validator("template")
    @classmethod
    def _check_template(cls, value: str) -> str:
        if value.count(SLOT) != 1:
            raise ValueError(f"it is {value!r}; expected a text with {SLOT} where the label stands")
        return value
