"""A figure that is drawn once and then only changed in places, to be cheap to draw again and again."""

import struct
import zlib
from collections.abc import Iterable

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
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

    def render(self, images: Iterable[tuple[Axes, np.ndarray]], moving: Iterable[Artist]) -> np.ndarray:
        """[height, width, 3] uint8 picture of the background, the images that fill axes, and the artists on top."""
        moving = tuple(moving)
        for artist in moving:
            artist.set_animated(True)
        if self._background is None:
            self._canvas.draw()
            self._background = self._canvas.copy_from_bbox(self.figure.bbox)
        self._canvas.restore_region(self._background)
        renderer = self._canvas.get_renderer()
        pixels = np.asarray(self._canvas.buffer_rgba())
        for axes, image in images:
            left, top, right, bottom = self._box(axes)
            pixels[top:bottom, left:right, :3] = image
        for artist in moving:
            artist.draw(renderer)
        return pixels[..., :3].copy()

    def _box(self, axes: Axes) -> tuple[int, int, int, int]:
        box = axes.get_window_extent()
        return round(box.x0), self._height - round(box.y1), round(box.x1), self._height - round(box.y0)


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
