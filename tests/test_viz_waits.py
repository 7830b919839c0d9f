"""Where episodes' time went, curves of runs and their comparison, and what a phone can read."""

import matplotlib as mpl
import pytest

from agentlab import viz
from agentlab.errors import ConfigError
from agentlab.tracing import Span
from agentlab.viz.waits import episode_times

mpl.use("Agg")
SECOND = 1_000_000_000
PHONE_PIXELS = 360


@pytest.fixture(autouse=True)
def close_figures():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def s(stage: str, start: float, end: float, **tags) -> Span:
    return Span(stage, round(start * SECOND), round(end * SECOND), "t", {"group": "g", "episode": 0, **tags})


EPISODE = [
    s("rollout", 0, 10),
    s("reset", 0, 1),
    s("model_call", 1, 5, queued_s=1.0, prefill_s=0.5, decode_s=2.0),
    s("agent", 5, 5.5),
    s("step", 5.5, 9),
    s("tool", 5.5, 8, tool="search"),
    s("reward", 8, 8.25),
    s("close", 9.5, 10),
]


class Run:
    """A run with two updates."""

    def __init__(self, rewards):
        self.metrics = [{"step": i + 1, "reward_mean": r} for i, r in enumerate(rewards)]
        self.evaluations = [{"step": 2, "success": 0.5, "low": 0.4, "high": 0.6, "count": 32}]

    def spans(self):
        return EPISODE

    def all_spans(self):
        return iter([*EPISODE, s("rollout", 20, 21, episode=1)])


def test_an_episodes_time_is_split_by_arithmetic():
    (found,) = episode_times(EPISODE)
    assert found.duration_s == 10
    expected = {
        "slot": 1.0,
        "prefill": 0.5,
        "decode": 2.0,
        "engine": 0.5,
        "tool": 2.5,
        "reward": 0.25,
        "environment": 1 + 0.75 + 0.5,
        "agent": 0.5,
        "other": 0.5,
    }
    assert found.parts == pytest.approx(expected, abs=1e-6)
    assert sum(found.parts.values()) == pytest.approx(found.duration_s)


def test_episodes_of_a_run_are_drawn_newest_last():
    ax = viz.episodes(Run([0, 1]))
    assert {text.get_text().split()[0] for text in ax.get_legend().get_texts()} >= {"slot", "tool", "decode"}
    assert max(bar.get_x() + bar.get_width() for bar in ax.patches) == pytest.approx(10)
    assert len({bar.get_y() for bar in ax.patches}) == 2
    assert len({bar.get_y() for bar in viz.episodes(Run([0]), newest=1).patches}) == 1
    assert viz.episodes([]).get_title() == "No episode has ended yet"
    with pytest.raises(ConfigError, match="newest must be at least 1"):
        viz.episodes([], newest=0)


def test_curves_and_comparison_take_runs():
    ax = viz.curves(Run([0.0, 1.0]))
    assert ax.lines[0].get_ydata().tolist() == [0, 1]
    ax = viz.compare({"lead 0": Run([0.0, 1.0]), "lead 1": Run([1.0, 1.0])})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["lead 0", "lead 1"]
    first, second = (line for line in ax.lines if line.get_label() in ("lead 0", "lead 1"))
    assert first.get_ydata().tolist() == [0, 0.5]
    assert first.get_color() != second.get_color()
    with pytest.raises(ConfigError, match="at least one"):
        viz.compare({})


def test_lanes_are_named_by_their_labels():
    ax = viz.timeline(EPISODE, lanes=("tools", "device"))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["tools", "device"]
    with pytest.raises(ConfigError, match="There is no lane 'tool'.*Did you mean 'tools'"):
        viz.timeline(EPISODE, lanes=["tool"])


@pytest.mark.parametrize(
    "draw",
    [
        lambda: viz.timeline([*EPISODE, s("decode", 1, 2), s("prefill", 2, 3), s("forward_backward", 3, 4)]),
        lambda: viz.episodes(EPISODE),
        lambda: viz.curves(Run([0.0, 1.0])),
        lambda: viz.compare({"a": Run([0.0, 1.0]), "b": Run([0.5, 1.0])}),
    ],
    ids=["timeline", "episodes", "curves", "compare"],
)
def test_every_text_can_be_read_where_the_picture_is_as_wide_as_a_phone(draw):
    figure = draw().figure
    figure.canvas.draw()
    inches = figure.get_size_inches()[0]
    texts = [text for text in figure.findobj(mpl.text.Text) if text.get_text().strip() and text.get_visible()]
    assert texts
    for text in texts:
        assert text.get_fontsize() / 72 / inches * PHONE_PIXELS >= 8, text.get_text()
    renderer = figure.canvas.get_renderer()
    ticks = [text for ax in figure.axes for tick in ax.xaxis.get_major_ticks() for text in (tick.label1, tick.label2)]
    for text in set(texts) - set(ticks):  # ticks beyond the limits of an axis are not drawn
        box = text.get_window_extent(renderer)
        assert box.x0 >= -1 and box.x1 <= figure.bbox.x1 + 1, f"{text.get_text()} is cut off"
