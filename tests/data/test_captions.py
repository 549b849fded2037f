"""Images with captions: embedded scenes, tables, COCO JSON, memory."""

import numpy as np

from regard.synthetic.captions import COLORS, COMBINATIONS, HELD_OUT, describe, label_text, make_captions
from regard.synthetic.scenes import SIDE

# --- scenes ----------------------------------------------------------------------------------------------------------


def test_captioned_scenes_are_a_function_of_their_number() -> None:
    one, other = make_captions(200), make_captions(200)
    train = one["train"]
    for number in range(20):
        (image, caption), (again, same) = train[number], other["train"][number]
        assert image.shape == (SIDE, SIDE, 3) and np.array_equal(image, again)
        assert caption == same == train.side(number, 1) == describe(train.arrangement(number))
    assert len(train) == 200 and len(one["test"]) == HELD_OUT
    assert train.fingerprint() != one["valid"].fingerprint() != make_captions(200, most=1)["valid"].fingerprint()
    captions = set(train.texts(1))
    assert len(captions) > 150 and "a green cross above a blue circle" in captions
    assert any(each.endswith("from left to right") for each in captions)


def test_the_pixels_have_the_color_of_the_sentence() -> None:
    """The middle of a single shape is nearest to the color that its caption names."""
    test = make_captions(1, most=1)["test"]
    for index in range(40):
        image, caption = test[index]
        color = caption.split()[1]
        apart = np.abs(image.astype(int) - 130).sum(-1) > 90  # not the background
        mean = image[apart].mean(0)
        assert min(COLORS, key=lambda name: np.abs(np.array(COLORS[name]) - mean).sum()) == color


def test_unseen_combinations_are_in_the_test_split_alone() -> None:
    unseen = (("red", "cross"), ("blue", "circle"))
    splits = make_captions(300, most=1, unseen=unseen)
    seen = {label_text(each) for each in COMBINATIONS if each not in unseen}
    assert set(splits["train"].texts(1)) == seen and set(splits["valid"].texts(1)) == seen
    assert set(splits["test"].texts(1)) == {"a red cross", "a blue circle"}
