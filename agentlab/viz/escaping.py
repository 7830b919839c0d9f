"""Text from outside in pages."""

import html

from agentlab.files import escaped


def escape(text: str) -> str:
    """The text as HTML that shows it; halves of surrogate pairs, which no page can hold, are spelled out."""
    return html.escape(escaped(text))
