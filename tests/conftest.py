"""What every test shares: profiles of Hypothesis, and which tests this machine can run."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

hypothesis.settings.register_profile("default", deadline=None, max_examples=50, print_blob=True)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True, scope="module")
def _programs_are_forgotten() -> Iterator[None]:
    """XLA maps memory for every program, and Linux gives a process 65,530 maps: all programs together need more."""
    yield
    if jax := sys.modules.get("jax"):
        jax.clear_caches()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the line that mends it, what needs a program that this machine lacks."""
    missing = {}
    if CHROMIUM is None:
        missing["browser"] = "no Chromium here: apt-get install chromium"
    if importlib.util.find_spec("vllm") is None:
        missing["vllm"] = "no vLLM here: pip install -e .[vllm]"
    for item in items:
        for marker, reason in missing.items():
            if item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def colab_python() -> str:
    """An interpreter with the packages of Colab in the versions of `pins/`: $AGENTLAB_COLAB_PYTHON, or .venv-colab."""
    made = Path(__file__).parent.parent / ".venv-colab" / "bin" / "python"
    python = os.environ.get("AGENTLAB_COLAB_PYTHON", str(made))
    if not Path(python).exists():
        pytest.skip("no environment with Colab's pins here: make test-colab")
    return python


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the browser that tests drive."""
    assert CHROMIUM, "mark tests that use a browser with pytest.mark.browser"
    return CHROMIUM
