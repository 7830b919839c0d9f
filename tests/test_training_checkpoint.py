"""Checkpoints: written whole and in the background, refused when of something else, passed over when damaged."""

import contextlib
import random
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from agentlab.errors import ConfigError
from agentlab.training.checkpoint import CheckpointStore, described, differences, place

ABOUT = {"model": {"shape": {"hidden_size": 8}}, "config": {"learning_rate": 1e-3, "seed": 0}}


def state(value):
    """Arrays of several types and shapes, none of them empty."""
    return {
        "trained": {"a": jnp.full((300, 40), value, jnp.float32), "b": jnp.arange(7, dtype=jnp.bfloat16) * value},
        "optimizer": (jnp.asarray(int(value), jnp.int32), [np.asarray(value, np.float64)]),
    }


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "run"


def write(folder, *versions, keep=5):
    with contextlib.closing(CheckpointStore(folder, keep=keep)) as store:
        for version in versions:
            store.save(version, state(version), about=ABOUT, record={"version": version, "loss": [1.5, float("nan")]})
        store.wait()


def read(folder, about=ABOUT, like=None):
    with contextlib.closing(CheckpointStore(folder)) as store:
        return store.restore(state(0) if like is None else like, about=about)


def files_of(folder: Path, version: int):
    return sorted(path for path in (folder / str(version)).rglob("*") if path.is_file())


def test_what_was_written_is_read_again_bit_for_bit(folder):
    write(folder, 3)
    found = read(folder)
    assert found.version == 3 and found.notes == () and found.record["version"] == 3
    assert found.record["loss"][0] == 1.5 and np.isnan(found.record["loss"][1])
    for ours, theirs in zip(_leaves(found.state), _leaves(state(3)), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_only_the_newest_are_kept(folder):
    write(folder, 1, 2, 3, 4, keep=2)
    assert sorted(path.name for path in folder.iterdir()) == ["3", "4"]


def test_a_state_may_be_changed_while_it_is_being_written(folder):
    array = np.arange(100_000, dtype=np.float32)
    with contextlib.closing(CheckpointStore(folder)) as store:
        store.save(1, {"a": array}, about=ABOUT, record={})
        array[:] = -1
        store.wait()
        found = store.restore({"a": array}, about=ABOUT)
    np.testing.assert_array_equal(found.state["a"], np.arange(100_000))


# A read that fails leaves answers under way, which come to a loop that Orbax has closed meanwhile.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before_and_said(folder):
    """Any file of it: cut in half, or with one byte changed."""
    write(folder, 1, 2)
    whole = {path: path.read_bytes() for path in files_of(folder, 2)}
    assert len(whole) > 5
    rng = random.Random(0)
    fell_back = 0
    for number, (path, data) in enumerate(whole.items()):
        place = rng.randrange(len(data)) if data else 0
        flipped = data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :] if data else b"?"
        path.write_bytes(flipped if number % 2 else data[: len(data) // 2])
        found = read(folder)
        for ours, theirs in zip(_leaves(found.state), _leaves(state(found.version)), strict=True):
            np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))
        if found.version == 1:
            fell_back += 1
            assert "The checkpoint of version 2 cannot be read" in found.notes[0]
            assert "Going on from version 1" in found.notes[0]
        path.write_bytes(data)
    assert fell_back >= 5
    assert read(folder).version == 2


def test_a_half_written_checkpoint_is_not_seen(folder):
    write(folder, 1, 2)
    (folder / "2").rename(folder / "2.orbax-checkpoint-tmp")
    assert read(folder).version == 1


def test_where_none_can_be_read_each_is_named(folder):
    write(folder, 1, 2)
    for version in (1, 2):
        for path in files_of(folder, version):
            path.write_bytes(b"")
    with pytest.raises(ConfigError, match=r"None of the checkpoints in .*version 2 cannot.*version 1 cannot"):
        read(folder)


def test_a_damaged_checkpoint_is_replaced_when_its_version_is_reached_again(folder):
    write(folder, 1, 2)
    for path in files_of(folder, 2):
        path.write_bytes(b"")
    write(folder, 2)
    assert read(folder).version == 2


def test_a_checkpoint_of_something_else_is_refused_with_every_difference(folder):
    write(folder, 1)
    other = {"model": {"shape": {"hidden_size": 16}}, "config": {"learning_rate": 2e-3, "seed": 0, "beta": 0.1}}
    with pytest.raises(ConfigError) as error:
        read(folder, about=other)
    for text in ("model.shape.hidden_size: 8 there, 16 here", "config.learning_rate: 0.001 there, 0.002 here"):
        assert text in str(error.value)
    assert "config.beta: None there, 0.1 here" in str(error.value) and "seed" not in str(error.value)


def test_options_that_only_say_how_fast_may_differ():
    from agentlab.learner import GRPOConfig

    one, other = (described(GRPOConfig(max_concurrency=n, num_slots=n, micro_batch_tokens=512 * n)) for n in (1, 2))
    assert differences(one, other) == []
    assert differences(described(GRPOConfig(seed=1)), one) == ["seed: 1 there, 0 here"]


def test_a_checkpoint_from_before_an_option_existed_is_good_while_the_option_is_left_alone():
    @dataclass(frozen=True)
    class Newer:
        rank: int = 4
        added: float = 0.5

    assert differences({"rank": 4}, described(Newer())) == []
    assert differences({"rank": 4}, described(Newer(added=0.7))) == ["added: None there, 0.7 here"]
    assert differences({"rank": 8}, described(Newer())) == ["rank: 8 there, 4 here"]


def test_the_address_of_a_bucket_is_left_as_it_is():
    assert str(place("gs://bucket/run")) == "gs://bucket/run"
    assert str(place("run")) == str(Path("run").absolute())


def test_at_least_one_checkpoint_must_be_kept(folder):
    with pytest.raises(ConfigError, match="keep_checkpoints must be at least 1, got 0"):
        CheckpointStore(folder, keep=0)


def _leaves(tree):
    import jax

    return jax.tree.leaves(tree)
