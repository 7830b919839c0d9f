"""What docstrings say of arguments, in the styles that people write."""

import inspect

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlab.tools import as_tool
from agentlab.tools.docstrings import argument_descriptions, description_of

WANTED = {"city": "The city, in full.", "days": "How many: 1 to 7."}
STYLES = {
    "Google": """
        Args:
            city: The city,
                in full.
            days: How many: 1 to 7.

        Returns:
            Text.
    """,
    "Google with types": """
        Args:
            city (str): The city,
                in full.
            days (dict[str, int], optional): How many: 1 to 7.

        Raises:
            KeyError: never.
    """,
    "Google's other words": """
        Arguments:
          city (str): The city,
            in full.
          days: How many: 1 to 7.
    """,
    "Google's keyword arguments": """
        Keyword Args:
            city: The city, in full.
            days: How many: 1 to 7.
    """,
    "NumPy": """
        Parameters
        ----------
        city : str
            The city,
            in full.
        days : int, optional
            How many: 1 to 7.

        Returns
        -------
        str
            Text.
    """,
    "NumPy without types": """
        Parameters
        ----------
        city
            The city, in full.
        days
            How many: 1 to 7.
    """,
    "reST": """
        :param city: The city,
            in full.
        :type city: str
        :param days: How many: 1 to 7.
        :returns: Text.
    """,
    "reST with types": """
        :param str city: The city, in full.
        :param dict[str, int] days: How many: 1 to 7.
        :raises KeyError: never.
    """,
    "reST's other words": """
        :arg city: The city, in full.
        :argument int days: How many: 1 to 7.
    """,
    "Epytext": """
        @param city: The city, in full.
        @param days: How many: 1 to 7.
    """,
}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("head", ["Tell the weather.\n\nOf a city: tomorrow's.", "Tell the weather.", ""])
def test_every_style_keeps_the_descriptions_of_arguments_and_that_of_the_function(style, head):
    docstring = f"{head}\n\n{inspect.cleandoc(STYLES[style])}\n"
    assert argument_descriptions(docstring) == WANTED
    assert description_of(docstring) == head


@pytest.mark.parametrize("style", STYLES)
def test_a_tool_tells_them(style):
    def weather(city: str, days: int = 1) -> str:
        return city

    weather.__doc__ = f"Tell the weather.\n{STYLES[style]}"
    spec = as_tool(weather).spec("weather")
    assert spec.description == "Tell the weather."
    assert {name: part["description"] for name, part in spec.parameters["properties"].items()} == WANTED


def test_several_names_share_a_description():
    docstring = "Go.\n\nParameters\n----------\nx, y : float\n    Where to.\n"
    assert argument_descriptions(docstring) == {"x": "Where to.", "y": "Where to."}


@pytest.mark.parametrize(
    "docstring",
    ["", "Say it.", "Say :hello: to them: all.", "Args: are good.", "A list:\n    - one\n\nExample:\n    >>> f(1)"],
)
def test_a_docstring_without_arguments_is_a_description_as_it_is(docstring):
    assert argument_descriptions(docstring) == {}
    assert description_of(docstring) == docstring


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["Args:", ":param x: y", "\n", "    ", "a: b", "----", "@param"])).map("".join)
)
def test_no_docstring_raises(docstring):
    assert isinstance(argument_descriptions(docstring), dict)
    assert isinstance(description_of(docstring), str)
