"""A figure that is drawn once and then only changed in places, to be cheap to draw again and again."""

import functools
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure


class Canvas:
    """A figure of fixed size in pixels; owned by the thread that draws it.

    What moves is given to `render` and painted over a stored background; `stale()` makes the
    background be drawn anew.
    """

    def __init__(self, width: int, height: int):
        self.figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor="white")
        self._height = height
        self._canvas = FigureCanvasAgg(self.figure)
        self._background = None

    def stale(self) -> None:
        """Something outside of what moves has changed."""
        self._background = None

    def size_of(self, axes: Axes) -> tuple[int, int]:
        """(rows, columns) of an image that fills these axes."""
        left, top, right, bottom = self._box(axes)
        return bottom - top, right - left

    def render(
        self,
        images: Iterable[tuple[Axes, np.ndarray]],
        moving: Iterable[Artist] = (),
        labels: Iterable["Label"] = (),
    ) -> np.ndarray:
        """[height, width, 3] uint8 picture of the background, artists, images that fill axes, and texts."""
        moving = tuple(moving)
        for artist in moving:
            artist.set_animated(True)
        if self._background is None:
            self._canvas.draw()
            self._background = self._canvas.copy_from_bbox(self.figure.bbox)
            self._empty = self._pixels()
        picture = self._painted(moving) if moving else self._empty.copy()
        for axes, image in images:
            left, top, right, bottom = self._box(axes)
            picture[top:bottom, left:right] = image
        for label in labels:
            self._write(picture, label)
        return picture

    def _painted(self, moving: Iterable[Artist]) -> np.ndarray:
        self._canvas.restore_region(self._background)
        renderer = self._canvas.get_renderer()
        for artist in moving:
            artist.draw(renderer)
        return self._pixels()

    def _pixels(self) -> np.ndarray:
        """[height, width, 3]; by channel, which is several times faster than all at once."""
        colored = np.asarray(self._canvas.buffer_rgba())
        return np.stack([colored[..., channel] for channel in range(3)], axis=-1)

    def _write(self, picture: np.ndarray, label: "Label") -> None:
        left, top, right, bottom = self._box(label.axes)
        opacity = lettering(label.text, label.size)
        rows, columns = opacity.shape
        x = round(left + label.x * (right - left) - (columns / 2 if label.centred else 0))
        y = round(top + label.y * (bottom - top) - rows / 2)
        x, y = max(0, min(x, picture.shape[1] - columns)), max(0, min(y, picture.shape[0] - rows))
        place = picture[y : y + rows, x : x + columns]
        ink = np.array(to_rgb(label.color)) * 255
        place[:] = place + (ink - place) * opacity[..., None]

    def _box(self, axes: Axes) -> tuple[int, int, int, int]:
        box = axes.get_window_extent()
        return round(box.x0), self._height - round(box.y1), round(box.x1), self._height - round(box.y0)


@dataclass(frozen=True)
class Label:
    """A text that changes often, at a place in axes: (0, 0) is the upper left corner, (1, 1) the lower right."""

    axes: Axes
    x: float
    y: float
    text: str
    size: float
    color: str
    centred: bool = True


def lettering(text: str, size: float) -> np.ndarray:
    """[rows, columns] opacity in [0, 1] of a text, made of words that are drawn once and kept."""
    words = [_word(word, size) for word in text.split()]
    space = np.zeros((len(words[0]), round(size * 0.4)))
    parts = [part for word in words for part in (space, word)][1:]
    return np.concatenate(parts, axis=1)


@functools.lru_cache(maxsize=1024)
def _word(word: str, size: float) -> np.ndarray:
    figure = Figure(figsize=(0.02 * size * (len(word) + 2), 0.03 * size), dpi=100, facecolor="white")
    canvas = FigureCanvasAgg(figure)
    figure.text(0.5, 0.5, word, size=size, color="black", ha="center", va="center_baseline")
    canvas.draw()
    opacity = 1 - np.asarray(canvas.buffer_rgba())[..., 0] / 255.0
    inked = np.flatnonzero(opacity.any(axis=0))
    return opacity[:, inked[0] : inked[-1] + 1] if len(inked) else opacity[:, :1]


def png(picture: np.ndarray) -> bytes:
    """A PNG of a [height, width, 3] uint8 picture: rows as differences to the row above, least compression.

    Source: the PNG specification, third edition, sections 5 and 9.2 (filter type 2).
    """
    height, width, _ = picture.shape
    rows = picture.reshape(height, width * 3)
    filtered = np.full((height, width * 3 + 1), 2, np.uint8)
    filtered[0, 1:] = rows[0]
    np.subtract(rows[1:], rows[:-1], out=filtered[1:, 1:])
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(filtered.data, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
