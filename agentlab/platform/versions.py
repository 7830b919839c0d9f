"""Which packages agentlab needs, in which versions, and which are installed."""

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

VersionOf = Callable[[str], str | None]
"""The installed version of a distribution, or None where it is not installed."""


@dataclass(frozen=True)
class Needed:
    """One package in the versions that agentlab works with."""

    name: str
    specifier: str
    """E.g. ">=0.7.2,<0.13"; empty if any version will do."""
    extra: str = ""
    """The optional part of agentlab that needs it; empty for agentlab itself."""

    @property
    def requirement(self) -> str:
        return f"{self.name}{self.specifier}"

    def accepts(self, version: str) -> bool:
        """Whether this version lies in the range; pre-releases count."""
        return Requirement(self.requirement).specifier.contains(version, prereleases=True)


def installed_version(name: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def declared_requirements() -> Sequence[str]:
    """What the installed agentlab declares that it needs; nothing where it is not installed."""
    try:
        return importlib.metadata.requires("agentlab") or ()
    except importlib.metadata.PackageNotFoundError:
        return ()


def needed_packages(declared: Sequence[str]) -> tuple[Needed, ...]:
    """Requirements as agentlab's metadata writes them, those of agentlab itself first.

    A requirement whose marker excludes this Python or operating system is left out.
    """
    found: dict[str, Needed] = {}
    for requirement in map(Requirement, declared):
        extra = _extra_of(requirement)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            needed = Needed(requirement.name, str(requirement.specifier), extra)
            found.setdefault(canonicalize_name(requirement.name), needed)
    return tuple(sorted(found.values(), key=lambda needed: needed.extra))


def _extra_of(requirement: Requirement) -> str:
    """The extra named in a marker such as `python_version >= "3.12" and extra == "tpu"`."""
    _, found, rest = str(requirement.marker or "").partition("extra ==")
    return rest.split('"')[1] if found else ""


def package_versions(version_of: VersionOf = installed_version) -> dict[str, str]:
    """Versions of agentlab and of the packages that it cannot do without, for reports."""
    required = [needed.name for needed in needed_packages(declared_requirements()) if not needed.extra]
    return {name: version for name in ["agentlab", *required] if (version := version_of(name))}
