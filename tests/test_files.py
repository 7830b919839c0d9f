"""Files that are there whole or not at all."""

import os

import pytest

from agentlab.errors import ConfigError
from agentlab.files import open_atomically, write_atomically


def test_a_file_is_written_with_its_folders_and_nothing_beside_it(tmp_path):
    path = write_atomically(tmp_path / "new" / "a.txt", "text \ud800")
    assert path.read_bytes() == b"text \\ud800"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"] and path.stat().st_mode & 0o777 == 0o644


def test_a_failure_leaves_what_was_there_and_no_half_of_the_new(tmp_path):
    path = write_atomically(tmp_path / "a.txt", "old")

    def half():
        with open_atomically(path) as file:
            file.write(b"half")
            raise ValueError("the other half is missing")

    with pytest.raises(ValueError, match="other half"):
        half()
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_link_is_followed_and_stays_one(tmp_path):
    (tmp_path / "real.txt").write_text("old")
    (tmp_path / "link.txt").symlink_to(tmp_path / "real.txt")
    write_atomically(tmp_path / "link.txt", "new")
    assert (tmp_path / "link.txt").is_symlink() and (tmp_path / "real.txt").read_text() == "new"


def test_what_is_no_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for odd in (tmp_path / "pipe", tmp_path):
        with pytest.raises(ConfigError, match="must be a file or not exist yet"):
            write_atomically(odd, "x")
