"""Where compiled programs are kept, and what happens when they cannot be."""

import platform
import resource
from pathlib import Path

import jax
import pytest

from agentlab.platform.compilation import VARIABLE, compilation_cache_folder, enable_compilation_cache, trim_memory


@pytest.fixture
def unset():
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    yield
    jax.config.update("jax_compilation_cache_dir", before)


def test_programs_are_kept_in_the_cache_directory_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert compilation_cache_folder() == Path("/somewhere/agentlab/compiled")
    monkeypatch.setenv(VARIABLE, "/elsewhere")
    assert compilation_cache_folder() == Path("/elsewhere")
    monkeypatch.setenv(VARIABLE, "off")
    assert compilation_cache_folder() is None


def test_the_folder_is_made_and_given_to_jax(unset, tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "deep" / "compiled"))
    assert enable_compilation_cache() == tmp_path / "deep" / "compiled"
    assert jax.config.jax_compilation_cache_dir == str(tmp_path / "deep" / "compiled")
    assert list((tmp_path / "deep" / "compiled").iterdir()) == []


def test_a_folder_that_jax_was_given_already_is_left(unset, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert enable_compilation_cache() == tmp_path


def test_a_folder_that_cannot_be_written_is_a_warning_that_says_what_to_do(unset, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match=f"cannot: .*Set {VARIABLE}"):
        assert enable_compilation_cache(tmp_path / "file" / "compiled") is None
    assert jax.config.jax_compilation_cache_dir is None


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc alone keeps it")
def test_memory_that_was_freed_goes_back_to_the_system():
    def resident_bytes() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    pieces = [bytes(100_000) for _ in range(1000)]
    last = pieces.pop()  # keeps glibc from giving back what lies before it
    pieces.clear()
    before = resident_bytes()
    trim_memory()
    assert last and before - resident_bytes() > 50e6
