"""Labels of a folder: id2label, label2id and problem_type of config.json, both ways."""

from collections.abc import Collection

from ...config.run import AnyRun
from ...files import JsonMapping, JsonObject
from .config_table import Joint

PROBLEM_TYPES = {
    "single_label_classification": "single_label",
    "multi_label_classification": "multi_label",
    "regression": "regression",
}


def stored_labels(theirs: JsonMapping) -> list[str]:
    """The names of id2label in order; LABEL_0, LABEL_1, … where config.json names none."""
    labels = theirs.get("id2label") or {number: f"LABEL_{number}" for number in range(theirs.get("num_labels") or 2)}
    return [str(labels[number]) for number in sorted(labels, key=int)]


def label_names(theirs: JsonMapping) -> list[str]:
    """The labels in order; ValueError if two have one name."""
    names = stored_labels(theirs)
    if len(set(names)) < len(names):
        raise ValueError(f"id2label has one name for two labels ({', '.join(names[:6])}); expected a name for each")
    return names


def label_maps(run: AnyRun, labels: Collection[str]) -> JsonObject:
    """The keys of config.json for the labels of a run; none where its model has no labels."""
    if not labels or not getattr(run.model, "labels", 0):
        return {}
    several = getattr(run.data, "problem_type", "") == "multi_label"
    return {
        **({"problem_type": "multi_label_classification"} if several else {}),
        "id2label": {str(number): name for number, name in enumerate(labels)},
        "label2id": {name: number for number, name in enumerate(labels)},
    }


def is_regressor(c: object) -> bool:
    """True if the head gives a number: as in transformers, a head for classes with one output."""
    return getattr(c, "head", "") == "class" and getattr(c, "labels", 0) == 1


def read_problem_type(theirs: JsonMapping) -> JsonObject:
    """Refuse a `problem_type` that regard does not have; the task reads it (`problem_type`)."""
    problem = theirs.get("problem_type")
    if problem is not None and problem not in PROBLEM_TYPES:
        raise ValueError(f"problem_type is {problem!r}; expected one of {', '.join(PROBLEM_TYPES)}")
    if problem == "regression" and (count := len(label_names(theirs))) > 1:
        raise ValueError(f"problem_type is 'regression' with {count} labels; regard reads regressors of one number")
    return {}


PROBLEM_TYPE = Joint(read_problem_type, lambda c: {"problem_type": "regression"} if is_regressor(c) else {})


def problem_type(theirs: JsonMapping, c: object) -> str:
    """Our data.problem_type of a folder."""
    return "regression" if is_regressor(c) else PROBLEM_TYPES.get(theirs.get("problem_type") or "", "auto")
