"""Class names and templates on their way to a text encoder."""

from __future__ import annotations

import pytest

from ultta._text import checked, prompts


def test_a_single_text_is_one_template() -> None:
    assert checked(("cat", "dog"), "a photo of a {}.") == (["cat", "dog"], ["a photo of a {}."])
    assert len(checked(["cat"], None)[1]) == 1
    assert prompts("cat", checked(["cat"], lambda name: name.upper())[1]) == ["CAT"]


@pytest.mark.parametrize("templates", [[], "a photo", ["a {}.", "a photo of a {name}"]])
def test_templates_have_a_place_for_the_name(templates: str | list[str]) -> None:
    with pytest.raises(ValueError, match="templates: expected"):
        checked(["cat", "dog"], templates)


def test_classes_are_a_list() -> None:
    with pytest.raises(TypeError, match="classes: expected a list"):
        checked("cat", None)
