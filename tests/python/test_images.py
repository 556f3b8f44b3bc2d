"""Pictures as the image cache holds them, beside Pillow's own decoding and resizing.

The oracle is the crop that the public image models train on (ADM): halved by BOX, resized by BICUBIC, cut.
LOCKSTEP_TEST_TOOLS: folder with images_tool. LOCKSTEP_CACHE: where scripts/get_emoji keeps the pictures.
"""
import json
import math
import pathlib
import random
import struct
import subprocess
import zlib

import numpy as np
import pytest
from PIL import Image, ImageDraw
from programs import fetched, program, tools_folder

SIDE = 64


def adm_crop(picture, side):
    while min(picture.size) >= 2 * side:
        picture = picture.resize(tuple(x // 2 for x in picture.size), resample=Image.Resampling.BOX)
    scale = side / min(picture.size)
    picture = picture.resize(tuple(round(x * scale) for x in picture.size), resample=Image.Resampling.BICUBIC)
    pixels = np.array(picture)
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return pixels[top:top + side, left:left + side]


def opened(file):
    """As RGB; what is transparent lies on white."""
    picture = Image.open(file)
    if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
        picture = picture.convert("RGBA")
        picture = Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture)
    return picture.convert("RGB")


def expected(file, side=SIDE):
    return adm_crop(opened(file), side)


def photo(width, height, seed=1):
    """Smooth light, edges and fine texture, as a photograph has them."""
    draw = random.Random(seed)
    y, x = np.mgrid[0:height, 0:width]
    planes = [127 + 80 * np.sin(x / (20 + 30 * draw.random()) + c) * np.cos(y / (25 + 30 * draw.random())) for c in range(3)]
    picture = Image.fromarray(np.clip(np.stack(planes, axis=-1), 0, 255).astype(np.uint8))
    pen = ImageDraw.Draw(picture)
    for _ in range(12):
        left, top = draw.randrange(width), draw.randrange(height)
        box = (left, top, left + draw.randrange(10, 11 + width // 3), top + draw.randrange(10, 11 + height // 3))
        pen.ellipse(box, fill=tuple(draw.randrange(256) for _ in range(3)))
    noise = np.random.default_rng(seed).normal(0, 6, (height, width, 1))
    return Image.fromarray(np.clip(np.array(picture) + noise, 0, 255).astype(np.uint8))


def prepared(folder, tmp_path, side=SIDE, cache=None):
    pixels = tmp_path / "pixels"
    arguments = [program(tools_folder() / "images_tool"), folder, str(side), pixels] + ([cache] if cache else [])
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    what = json.loads(done.stdout)
    what["pixels"] = np.fromfile(pixels, dtype=np.uint8).reshape(what["images"], side, side, 3)
    return what


def one(file, tmp_path, side=SIDE):
    folder = tmp_path / f"one-{file.name}-{side}"
    folder.mkdir()
    (folder / file.name).symlink_to(file)
    return prepared(folder, tmp_path, side)["pixels"][0]


def psnr(a, b):
    error = np.mean((a.astype(float) - b.astype(float)) ** 2)
    return math.inf if error == 0 else 10 * math.log10(255 ** 2 / error)


def difference(a, b):
    return np.abs(a.astype(int) - b.astype(int))


@pytest.mark.parametrize("size", [(64, 64), (1, 1), (65, 130), (100, 80), (127, 127), (128, 128), (129, 131), (375, 500),
                                  (1000, 64), (20, 3000), (5, 7), (640, 481)])
def test_a_png_becomes_what_pillow_makes_of_it_to_the_bit(tmp_path, size):
    file = tmp_path / "photo.png"
    photo(*size).save(file)
    assert np.array_equal(one(file, tmp_path), expected(file))


def test_a_high_png_differs_where_pillow_takes_rows_first(tmp_path):
    file = tmp_path / "photo.png"
    photo(65, 300).save(file)
    assert difference(one(file, tmp_path), expected(file)).mean() <= 0.2


@pytest.mark.parametrize("side", [1, 8, 63, 256])
def test_other_sides_are_pillow_s_too(tmp_path, side):
    file = tmp_path / "photo.png"
    photo(300, 211).save(file)
    assert np.array_equal(one(file, tmp_path, side), expected(file, side))


def save_png(picture, kind, file):
    width, height = picture.size
    alpha = Image.fromarray(np.mgrid[0:height, 0:width][1].astype(np.uint8) * 2)
    if kind == "rgba":
        picture.putalpha(alpha)
    elif kind == "grey and alpha":
        picture = picture.convert("L")
        picture.putalpha(alpha)
    elif kind == "palette":
        picture = picture.quantize(200)
    elif kind == "palette of 4 colours":
        picture = picture.quantize(4)
    elif kind == "palette with a transparent colour":
        picture.quantize(50).save(file, transparency=7)
        return
    elif kind == "black and white":
        picture = picture.convert("1")
    elif kind == "grey":
        picture = picture.convert("L")
    picture.save(file)


@pytest.mark.parametrize("kind", ["rgba", "grey and alpha", "palette", "palette of 4 colours",
                                  "palette with a transparent colour", "black and white", "grey"])
def test_every_kind_of_png_becomes_rgb_and_transparency_white(tmp_path, kind):
    file = tmp_path / "photo.png"
    save_png(photo(120, 90), kind, file)
    assert difference(one(file, tmp_path), expected(file)).max() <= 1


def test_sixteen_bits_become_eight(tmp_path):
    grey = np.array(photo(90, 90).convert("L"))
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "sixteen.png")
    Image.fromarray(grey).save(tmp_path / "eight.png")
    assert Image.open(tmp_path / "sixteen.png").mode.startswith("I")
    assert np.array_equal(one(tmp_path / "sixteen.png", tmp_path), expected(tmp_path / "eight.png"))


def png_of(pixels, rows, interlaced=False):
    """The bytes of a PNG file: Pillow writes 16 bits in grey only, and nothing interlaced."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8 * pixels.itemsize, {3: 2, 4: 6}[channels], 0, 0, interlaced)
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("kind", ["rgb", "rgba"])
def test_sixteen_bits_of_each_colour_become_eight(tmp_path, kind):
    save_png(photo(120, 90), kind, tmp_path / "eight.png")
    pixels = np.array(Image.open(tmp_path / "eight.png"))
    assert pixels.shape == (90, 120, len(kind))
    sixteen = (pixels.astype(np.uint16) * 257).astype(">u2")
    (tmp_path / "sixteen.png").write_bytes(png_of(sixteen, sixteen))
    assert difference(one(tmp_path / "sixteen.png", tmp_path), expected(tmp_path / "eight.png")).max() <= 1


@pytest.mark.parametrize("size", [(120, 90), (1, 1), (3, 70)])
def test_an_interlaced_png_is_that_without_interlacing(tmp_path, size):
    pixels = np.array(photo(*size))
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]  # Adam7
    rows = [row for x, y, dx, dy in passes for row in pixels[y::dy, x::dx] if len(row) > 0]
    file = tmp_path / "interlaced.png"
    file.write_bytes(png_of(pixels, rows, interlaced=True))
    assert Image.open(file).info["interlace"] == 1
    assert np.array_equal(one(file, tmp_path), adm_crop(photo(*size), SIDE))


def test_of_an_animated_png_the_first_picture_is_taken_and_a_gif_is_named(tmp_path):
    pictures = [photo(120, 90, seed) for seed in (1, 2, 3)]
    folder = tmp_path / "images"
    folder.mkdir()
    pictures[0].save(folder / "a.png", save_all=True, append_images=pictures[1:], duration=100)
    assert Image.open(folder / "a.png").n_frames == 3
    pictures[0].save(folder / "b.gif", save_all=True, append_images=pictures[1:])
    pictures[0].save(tmp_path / "still.png")
    what = prepared(folder, tmp_path)
    assert np.array_equal(what["pixels"][0], expected(tmp_path / "still.png"))
    assert what["images"] == 1 and what["skipped"] == [["b.gif", "is a GIF file; JPEG and PNG files are read"]]


@pytest.mark.parametrize("options", [{}, {"quality": 95, "subsampling": 0}, {"progressive": True}, {"quality": 30}],
                         ids=["plain", "without subsampling", "progressive", "poor"])
def test_a_jpeg_that_is_not_halved_is_pillow_s_but_for_rounding(tmp_path, options):
    file = tmp_path / "photo.jpg"
    photo(110, 97).save(file, **options)
    apart = difference(one(file, tmp_path), expected(file))
    assert apart.mean() <= 0.05 and apart.max() <= 3


def resized_at_once(image, side):
    """Pillow's bicubic of the whole picture, without the halvings before it, and the middle of that."""
    scale = side / min(image.size)
    width, height = (round(size * scale) for size in image.size)
    left, top = (width - side) // 2, (height - side) // 2
    return np.array(image.resize((width, height), Image.Resampling.BICUBIC))[top:top + side, left:left + side]


# Decoded at 1/2, 1/4 or 1/8. Pillow's halvings of odd sizes shift pixels by up to half of one, libjpeg's do not: ours is as near
# to the picture as these, or nearer.
@pytest.mark.parametrize("size", [(640, 480), (375, 500), (1200, 900), (2500, 2000), (1023, 517), (257, 259)])
def test_a_jpeg_decoded_at_a_smaller_size_is_near_pillow_s(tmp_path, size):
    file = tmp_path / "photo.jpg"
    photo(*size).save(file, quality=90)
    found, at_once = one(file, tmp_path), resized_at_once(opened(file), 64)
    assert psnr(found, at_once) >= max(38, psnr(expected(file), at_once) - 1)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_jpegs_become_rgb_as_pillow_makes_them(tmp_path, mode):
    file = tmp_path / "photo.jpg"
    photo(110, 97).convert(mode).save(file, quality=95)
    apart = difference(one(file, tmp_path), expected(file))
    assert apart.mean() <= 0.6 and apart.max() <= 4


def test_a_cut_off_picture_is_skipped_with_its_reason_and_not_half_grey(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    photo(200, 150).save(folder / "whole.jpg")
    photo(200, 150).save(tmp_path / "scans.jpg", progressive=True)
    photo(200, 150).save(tmp_path / "whole.png")
    for source in (folder / "whole.jpg", tmp_path / "scans.jpg", tmp_path / "whole.png"):
        data = source.read_bytes()
        for tenth in range(1, 10):
            (folder / f"cut-{tenth}-{source.name}").write_bytes(data[:len(data) * tenth // 10])
    what = prepared(folder, tmp_path)
    assert what["images"] == 1 and len(what["skipped"]) == 27
    assert all(reason.startswith("cannot be decoded: ") for _, reason in what["skipped"])


def test_class_folders_of_real_pictures_keep_their_order(tmp_path):
    folder = fetched("get_emoji")
    what = prepared(folder, tmp_path, cache=tmp_path / "cache")
    files = sorted(folder.rglob("*.png"), key=lambda file: str(file.relative_to(folder)))
    assert what["images"] == len(files) == 3786 and what["skipped"] == []
    assert what["summary"] == "3786 files in 10 classes (.png 3786)"
    assert [what["classes"][label] for label in what["labels"]] == [file.parent.name for file in files]
    for i in range(0, len(files), 37):
        assert difference(what["pixels"][i], expected(files[i])).max() <= 1, files[i]
    again = prepared(folder, tmp_path, cache=tmp_path / "cache")
    assert again["was_there"] and again["digest"] == what["digest"]
    assert [file.name for file in (tmp_path / "cache").iterdir()] == [pathlib.Path(what["path"]).name]
