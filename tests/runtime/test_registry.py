"""The registry: names, options and errors that name what is known."""

import pytest

from densecal.errors import InputError
from densecal.runtime.registry import Registry, suggestion


@pytest.fixture
def shapes() -> Registry:
    registry: Registry = Registry("shape")

    class Shape:
        def __init__(self, colour: str = "black") -> None:
            self.colour = colour

    @registry.register("square")
    class Square(Shape):
        def __init__(self, side: float = 1.0, **options: str) -> None:
            super().__init__(**options)
            self.side = side

    @registry.register("circle")
    class Circle(Shape):
        def __init__(self, radius: float = 1.0) -> None:
            super().__init__()
            self.radius = radius

    @registry.register("line")
    def line(length: float) -> float:
        return length

    return registry


def test_names_are_sorted(shapes):
    assert shapes.names() == ["circle", "line", "square"]


def test_registering_returns_the_item_itself():
    registry: Registry = Registry("shape")
    assert registry.register("number")(abs) is abs
    assert registry.find("number") is abs


def test_a_name_can_be_registered_only_once(shapes):
    with pytest.raises(ValueError, match=r"shape 'line' is already registered by .*line"):
        shapes.register("line")(abs)
    assert shapes.create("line", length=2.0) == 2.0


def test_an_unknown_name_is_an_error_that_lists_the_known_ones(shapes):
    with pytest.raises(InputError) as caught:
        shapes.find("sqare")
    assert str(caught.value) == "shape: 'sqare'; expected one of circle, line, square (did you mean square?)"
    with pytest.raises(InputError, match=r"^a\.yaml: 'zzz'; expected one of circle, line, square$"):
        shapes.find("zzz", "a.yaml")


def test_options_include_inherited_ones_only_where_they_are_passed_on(shapes):
    assert shapes.options("square") == ["side", "colour"]
    assert shapes.options("circle") == ["radius"]
    assert shapes.options("line") == ["length"]


def test_create_passes_options_on(shapes):
    square = shapes.create("square", side=2.0, colour="red")
    assert (square.side, square.colour) == (2.0, "red")


def test_an_unknown_option_is_an_error_that_lists_the_known_ones(shapes):
    with pytest.raises(TypeError, match=r"shape 'circle': unknown option 'colour'; expected one of radius"):
        shapes.create("circle", colour="red")
    with pytest.raises(InputError, match="'cube'"):
        shapes.create("cube")


def test_nothing_is_suggested_for_a_name_unlike_all_others():
    assert suggestion("temprature", ["temperature", "vector"]) == "did you mean temperature?"
    assert suggestion("zzz", ["temperature", "vector"]) == ""
