"""Recipes and families: lists, completion and explanations of settings."""

from ..files import json_line


def complete_recipe(incomplete: str) -> list[str]:
    """The recipes that a shell completes to."""
    from ..recipes import names

    return [name for name in names() if name.startswith(incomplete)]


def print_lists(as_json: bool) -> None:
    """Print the recipes with their descriptions, and the families with their sizes."""
    from .. import api
    from ..config.registry import FAMILIES
    from ..families import family

    recipes, sizes = dict(api.recipes()), {name: list(family(name).SIZES) for name in FAMILIES}
    if as_json:
        print(json_line({"recipes": recipes, "families": sizes}))
        return
    print("recipes")
    for name, header in recipes.items():
        print(f"  {name}  {header}")
    print("families")
    for name, own in sizes.items():
        print(f"  {name}  sizes: {', '.join(own)}")


def print_explanation(recipe: str, changes: dict[str, str], key: str, as_json: bool) -> None:
    """Explain a setting, or all settings of a group, of a recipe."""
    from .. import api
    from ..config.explain import explain_setting, format_explanation

    records = explain_setting(recipe, api.resolve(recipe, changes), key)
    print("\n".join(map(json_line, records)) if as_json else format_explanation(records))
