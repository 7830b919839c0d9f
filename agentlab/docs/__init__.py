"""The pages that come with agentlab, and what makes the one of them that is made from docstrings."""

from agentlab.docs.reference import FOLDER, REFERENCE, reference

__all__ = ["FOLDER", "REFERENCE", "reference"]
