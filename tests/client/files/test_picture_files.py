"""Files of photographs and masks: their shape, which way up they are, and their levels."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageOps

from lumigrad.client import Camera, InvalidArgument
from lumigrad.client.datasets import Capture, View
from lumigrad.client.fitting.background import Background
from lumigrad.client.fitting.matching import Matched, have_one_shape
from lumigrad.client.fitting.photograph import Photograph
from lumigrad.client.fitting.picture_file import read_header, read_mask, read_picture
from lumigrad.client.fitting.shot import Shot, shots_of

WIDTH, HEIGHT = 32, 48
WHOLE = (WIDTH, HEIGHT)
# Levels of a portrait that no turn or flip leaves unchanged.
UPRIGHT = np.random.default_rng(0).integers(30, 226, (HEIGHT, WIDTH, 3), np.uint8)
TURNS = {6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270, 3: Image.Transpose.ROTATE_180}


def camera(width: int = WIDTH, height: int = HEIGHT) -> Camera:
    return Camera.opencv(40.0, 40.0, width / 2, height / 2, np.eye(3), [0.0, 0.0, 4.0], width, height)


def save(path: Path, pixels: np.ndarray, orientation: int = 1, **options: object) -> Path:
    """Stores upright pixels as a turned phone does: viewers turn them back by the EXIF orientation."""
    picture = Image.fromarray(pixels)
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = picture.transpose(TURNS[orientation]) if orientation in TURNS else picture
    picture.save(path, exif=exif, **options)
    return path


def shot(image: Path, mask: Path | None = None, taken: Camera | None = None) -> Shot:
    return Shot.of(Matched.of(View("a", taken or camera(), image, mask)), 4096, Background())


def read(image: Path, mask: Path | None = None, taken: Camera | None = None) -> Photograph:
    return shot(image, mask, taken).read()


@pytest.mark.parametrize("name", ["a.png", "a.webp", "a.tif"])
@pytest.mark.parametrize("orientation", [6, 8])
def test_a_photograph_that_fits_its_camera_only_upright_is_turned(tmp_path: Path, name: str, orientation: int):
    options = {"a.webp": {"lossless": True}, "a.tif": {"compression": "tiff_lzw"}}.get(name, {})
    image = save(tmp_path / name, UPRIGHT, orientation, **options)
    found = shot(image)
    assert (found.camera.width, found.camera.height) == WHOLE
    np.testing.assert_array_equal(found.read().pixels, UPRIGHT)
    small = Shot.of(Matched.of(View("a", camera(), image)), 24, Background())
    expected = Image.fromarray(UPRIGHT).resize((16, 24), Image.Resampling.LANCZOS, reducing_gap=2.0)
    np.testing.assert_array_equal(small.read().pixels, np.asarray(expected))
    # COLMAP calibrates cameras for the stored pixels.
    with Image.open(image) as opened:
        stored = np.asarray(ImageOps.exif_transpose(opened).transpose(TURNS[orientation]))
    np.testing.assert_array_equal(read(image, taken=camera(HEIGHT, WIDTH)).pixels, stored)


def test_a_large_jpeg_is_turned_too(tmp_path: Path):
    large = np.asarray(Image.fromarray(UPRIGHT).resize((640, 960), Image.Resampling.BICUBIC))
    image = save(tmp_path / "a.jpg", large, 6, quality=95)
    small = Shot.of(Matched.of(View("a", camera(), image)), 240, Background()).read().pixels
    expected = np.asarray(Image.fromarray(large).resize((160, 240), Image.Resampling.BOX))
    assert np.abs(small.astype(int) - expected).mean() < 4


def test_orientations_are_told(tmp_path: Path):
    save(tmp_path / "turned.png", UPRIGHT, 6)
    save(tmp_path / "over.png", UPRIGHT, 3)
    save(tmp_path / "plain.png", UPRIGHT)
    views = tuple(View(path.stem, camera(), path) for path in sorted(tmp_path.glob("*.png")))
    with pytest.warns(UserWarning) as told:
        shots_of(Capture(views), 4096, "black")
    said = [str(each.message) for each in told]
    assert len(said) == 2
    assert said[0].startswith("1 photograph has EXIF orientation 3; it is used as stored")
    assert said[1].startswith("1 photograph has EXIF orientation 6; it is turned by it")
    np.testing.assert_array_equal(read(tmp_path / "over.png").pixels, UPRIGHT[::-1, ::-1])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
def test_damaged_exif_data_do_not_matter(tmp_path: Path):
    content = save(tmp_path / "a.jpg", UPRIGHT, quality=95)
    whole = content.read_bytes()
    start = whole.index(b"Exif\0\0") + 6
    for damaged in (b"XX", b"II*\0\xff\xff\xff\x7f"):
        content.write_bytes(whole[:start] + damaged + whole[start + len(damaged) :])
        assert read(content).pixels.shape == (HEIGHT, WIDTH, 3)


def test_a_square_photograph_is_used_as_it_is_stored(tmp_path: Path):
    square = UPRIGHT[:WIDTH]
    image = save(tmp_path / "a.png", square, 6)
    matched = Matched.of(View("a", camera(WIDTH, WIDTH), image))
    assert (matched.orientation, matched.ignored) == (1, 6)
    np.testing.assert_array_equal(read(image, taken=camera(WIDTH, WIDTH)).pixels, np.rot90(square))


@pytest.mark.parametrize(
    ("pixels", "said"),
    [
        (UPRIGHT.swapaxes(0, 1), "got 48x32; turn the photograph by 90 degrees"),
        (UPRIGHT[8:40], "got 32x32; crop the camera too"),
        (UPRIGHT[:, :28], "got 28x48; crop the camera too"),
    ],
)
def test_a_photograph_of_another_shape_is_refused_with_both_sizes(tmp_path: Path, pixels: np.ndarray, said: str):
    image = save(tmp_path / "a.png", pixels)
    with pytest.raises(InvalidArgument, match=rf"a\.png: expected a photograph of 32x48 like its camera.*{said}"):
        shot(image)
    sideways = save(tmp_path / "b.jpg", UPRIGHT[8:24], 6)
    with pytest.raises(InvalidArgument, match=r"b\.jpg: expected .* of 32x48 .*got 16x32 with EXIF orientation 6;"):
        shot(sideways)


@pytest.mark.parametrize("size", [(16, 24), (64, 96), (8, 12), (10, 16), (11, 16)])
def test_other_sizes_of_the_same_shape_are_taken(tmp_path: Path, size: tuple[int, int]):
    Image.fromarray(UPRIGHT).resize(size).save(tmp_path / "a.png")
    found = shot(tmp_path / "a.png")
    assert (found.camera.width, found.camera.height) == size


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        # Reduced by 2, 4 and 8, and rounded down or up.
        *(((3958, 2968), size, True) for size in ((494, 371), (495, 371), (1979, 1484), (989, 742), (990, 742))),
        ((4946, 3286), (1237, 822), True),
        ((4000, 3000), (4000, 2999), True),
        ((4000, 3000), (4000, 2997), False),
        ((1920, 1080), (1920, 1088), False),
        ((4000, 3000), (3000, 4000), False),
        ((1600, 1200), (1600, 900), False),
    ],
)
def test_a_pixel_is_a_matter_of_rounding(first: tuple[int, int], second: tuple[int, int], same: bool):
    assert have_one_shape(first, second) == have_one_shape(second, first) == same


MASK = np.where(np.arange(HEIGHT)[:, None] < 12, 0, 255).astype(np.uint8) * np.ones((1, WIDTH), np.uint8)


def test_masks_are_turned_like_photographs_or_refused(tmp_path: Path):
    image = save(tmp_path / "a.png", UPRIGHT)
    sideways = save(tmp_path / "b.png", MASK.swapaxes(0, 1))
    with pytest.raises(InvalidArgument, match=r"b\.png: expected a mask of 32x48 like its camera.*got 48x32; turn the"):
        shot(image, sideways)
    with pytest.raises(InvalidArgument, match=r"c\.png: expected a mask of 32x48 .*got 32x32; crop"):
        shot(image, save(tmp_path / "c.png", MASK[:WIDTH]))
    np.testing.assert_array_equal(read(image, save(tmp_path / "d.png", MASK, 6)).mask, MASK)
    # A mask of the stored pixels is turned with its photograph, whatever the mask's own orientation says.
    turned = save(tmp_path / "e.jpg", UPRIGHT, 6)
    stored = tmp_path / "f.png"
    Image.fromarray(MASK).transpose(TURNS[6]).save(stored)
    for mask in (stored, tmp_path / "d.png", save(tmp_path / "g.png", MASK)):
        np.testing.assert_array_equal(read(turned, mask).mask, MASK)


GREY = np.random.default_rng(1).integers(0, 256, (HEIGHT, WIDTH), np.uint8)
GREY[0, :2] = 0, 255


def big_endian(path: Path) -> None:
    pixels = (GREY.astype(np.uint16) * 257).astype(">u2")
    Image.frombytes("I;16B", WHOLE, pixels.tobytes()).save(path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("grey.png", lambda path: Image.fromarray(GREY).save(path)),
        ("deep.png", lambda path: Image.fromarray(GREY.astype(np.uint16) * 257).save(path)),
        ("deep.tif", lambda path: Image.fromarray(GREY.astype(np.uint16) * 257).save(path)),
        ("big.tif", big_endian),
        ("long.tif", lambda path: Image.fromarray(GREY.astype(np.int32) * 257).save(path)),
        ("deep.pgm", lambda path: path.write_bytes(b"P5 32 48 65535\n" + (GREY.astype(">u2") * 257).tobytes())),
        ("float.tif", lambda path: Image.fromarray((GREY / 255).astype(np.float32)).save(path)),
        ("alpha.png", lambda path: Image.fromarray(GREY).convert("LA").save(path)),
        ("palette.png", lambda path: Image.fromarray(GREY).convert("P").save(path)),
        ("colour.bmp", lambda path: Image.fromarray(GREY).convert("RGB").save(path)),
    ],
)
def test_levels_of_photographs_are_scaled_to_8_bits(tmp_path: Path, name: str, write):
    write(tmp_path / name)
    pixels = read_picture(tmp_path / name, WHOLE)[..., :3]
    np.testing.assert_array_equal(pixels, np.repeat(GREY[..., None], 3, axis=2))


def deep_colours(path: Path, pixels: np.ndarray) -> None:
    """A PNG of three channels with 16 bits, which Pillow does not write."""

    def part(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    head = struct.pack(">IIBBBBB", *WHOLE, 16, 2, 0, 0, 0)
    parts = part(b"IHDR", head), part(b"IDAT", zlib.compress(rows)), part(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def test_colours_of_16_bits_are_scaled_too_and_those_of_fewer_refused(tmp_path: Path):
    deep_colours(tmp_path / "a.png", UPRIGHT.astype(np.uint16) * 257)
    np.testing.assert_array_equal(read_picture(tmp_path / "a.png", WHOLE), UPRIGHT)
    deep_colours(tmp_path / "b.png", UPRIGHT.astype(np.uint16) * 16)
    with pytest.raises(InvalidArgument, match=r"b\.png: expected levels up to 65,535 .* got at most 3,\d+, like a"):
        read_picture(tmp_path / "b.png", WHOLE)


def test_a_picture_whose_0_is_white_is_not_inverted(tmp_path: Path):
    for name, pixels in (("a.tif", GREY), ("b.tif", GREY.astype(np.uint16) * 257)):
        inverse = np.iinfo(pixels.dtype).max - pixels
        Image.fromarray(inverse).save(tmp_path / name)
        content = (tmp_path / name).read_bytes()
        # Pillow always writes that 0 is black.
        place = content.index(struct.pack("<HHIH", 262, 3, 1, 1))
        (tmp_path / name).write_bytes(content[: place + 8] + struct.pack("<H", 0) + content[place + 10 :])
        np.testing.assert_array_equal(read_picture(tmp_path / name, WHOLE)[..., 0], GREY)


def test_one_bit_and_cmyk_photographs_are_read(tmp_path: Path):
    Image.fromarray(GREY > 99).save(tmp_path / "bits.png")
    np.testing.assert_array_equal(read_picture(tmp_path / "bits.png", WHOLE)[..., 0], np.where(GREY > 99, 255, 0))
    Image.fromarray(UPRIGHT).convert("CMYK").save(tmp_path / "ink.tif")
    np.testing.assert_allclose(read_picture(tmp_path / "ink.tif", WHOLE), UPRIGHT, atol=2)


@pytest.mark.parametrize(
    ("name", "pixels", "said"),
    [
        (
            "sensor.png",
            GREY.astype(np.uint16) * 16,
            "expected levels up to 65,535 of a picture of 16 bits, got at most 4,080",
        ),
        ("signed.tif", GREY.astype(np.int32) - 300, "expected levels of at most 16 bits, got -300 to -45"),
        ("light.tif", GREY.astype(np.float32), "expected floats from 0 to 1, got 0 to 255"),
        ("nan.tif", np.full((HEIGHT, WIDTH), np.nan, np.float32), "expected finite levels"),
    ],
)
def test_levels_that_have_no_8_bits_are_refused(tmp_path: Path, name: str, pixels: np.ndarray, said: str):
    Image.fromarray(pixels).save(tmp_path / name)
    with pytest.raises(InvalidArgument, match=f"^path: {tmp_path}/{name}: {said}"):
        read_picture(tmp_path / name, WHOLE)


# Pictures in which programs paint each thing with another level or colour.
LABELS = MASK // 255 * np.where(np.arange(WIDTH) < 8, 1, 2).astype(np.uint8)
COLOURS = (LABELS[..., None] == (1, 2, 9)) * np.uint8(128)


# The first label is as dark as number 64 of the palette of PASCAL VOC, the second even darker.
DARK = (LABELS[..., None] == (1, 2, 9)) * np.array([32, 4, 0], np.uint8)
MIXED = np.where(LABELS[..., None] == 2, COLOURS, DARK)


def of_alpha(path: Path, color: int) -> None:
    Image.fromarray(np.dstack([np.full((HEIGHT, WIDTH, 3), color, np.uint8), MASK]), "RGBA").save(path)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("plain.png", lambda path: Image.fromarray(MASK).save(path)),
        ("one.png", lambda path: Image.fromarray(MASK // 255).save(path)),
        ("bits.png", lambda path: Image.fromarray(MASK > 0).save(path)),
        ("deep.png", lambda path: Image.fromarray(MASK.astype(np.uint16) * 257).save(path)),
        ("low.png", lambda path: Image.fromarray(MASK.astype(np.uint16) // 255).save(path)),
        ("float.tif", lambda path: Image.fromarray((MASK / 255).astype(np.float32)).save(path)),
        ("palette.png", lambda path: Image.fromarray(MASK).convert("P").save(path)),
        ("opaque.png", lambda path: Image.fromarray(MASK).convert("RGBA").save(path)),
        ("number.png", lambda path: Image.fromarray(MASK // 255 * 7).save(path)),
        ("labels.png", lambda path: Image.fromarray(LABELS).save(path)),
        ("colours.png", lambda path: Image.fromarray(COLOURS).save(path)),
        ("colours.jpg", lambda path: Image.fromarray(COLOURS).save(path, quality=95, subsampling=0)),
        ("dark.png", lambda path: Image.fromarray(DARK).save(path)),
        ("dark_and_bright.png", lambda path: Image.fromarray(MIXED).save(path)),
        ("dark_palette.png", lambda path: Image.fromarray(DARK).convert("P", palette=1).save(path)),
        ("clear_and_dark.png", lambda path: Image.fromarray(DARK).convert("RGBA").save(path)),
        ("clear.png", lambda path: Image.fromarray(COLOURS).convert("RGBA").save(path)),
        ("colours_palette.png", lambda path: Image.fromarray(COLOURS).convert("P").save(path)),
        ("white.png", lambda path: of_alpha(path, 255)),
        ("grey.png", lambda path: of_alpha(path, 90)),
        ("la.png", lambda path: Image.fromarray(np.dstack([np.full_like(MASK, 200), MASK]), "LA").save(path)),
        ("key.png", lambda path: Image.fromarray(MASK).convert("P").save(path, transparency=0)),
    ],
)
def test_masks_are_what_is_not_black_or_not_transparent(tmp_path: Path, name: str, write):
    write(tmp_path / name)
    np.testing.assert_array_equal(read_mask(tmp_path / name, WHOLE), MASK)


def test_labels_that_may_be_black_are_refused(tmp_path: Path):
    """A mask ignored one of the things in it, without a word."""
    size = 96
    painted = np.zeros((size, size, 3), np.uint8)
    painted[16:48, 16:80], painted[56:, 16:80] = (180, 0, 40), (24, 0, 0)
    Image.fromarray(painted).save(tmp_path / "dark.jpg", quality=90)
    with pytest.raises(InvalidArgument, match=r"dark\.jpg: expected labels of colours with a level above 32, got"):
        read_mask(tmp_path / "dark.jpg", (size, size))
    # The same in PNG is exact.
    Image.fromarray(painted).save(tmp_path / "dark.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "dark.png", (size, size)) > 0, painted.any(axis=-1))


@pytest.mark.parametrize(("low", "high"), [(1, 254), (16, 235), (25, 255)])
def test_small_weights_of_grey_masks_stay(tmp_path: Path, low: int, high: int):
    size = 96
    weights = np.zeros((size, size), np.uint8)
    weights[16:48, 16:80], weights[56:, 16:80] = low, high
    Image.fromarray(weights).save(tmp_path / "grey.png")
    clear = np.full((size, size, 4), 255, np.uint8)
    clear[..., 3] = weights
    Image.fromarray(clear).save(tmp_path / "clear.png")
    Image.fromarray(weights.astype(np.float32) / 255).save(tmp_path / "deep.tif")
    for path in tmp_path.iterdir():
        # Floats are rounded up.
        np.testing.assert_allclose(
            read_mask(path, (size, size)), weights, atol=path.suffix == ".tif", err_msg=path.name
        )


@pytest.mark.parametrize("quality", [30, 75, 95])
def test_what_compression_and_smooth_edges_leave_of_black_is_no_label(tmp_path: Path, quality: int):
    size = 96
    disc = Image.new("RGB", (4 * size, 4 * size))
    ImageDraw.Draw(disc).ellipse((40, 40, 300, 300), fill=(0, 200, 60))
    disc.save(tmp_path / "sharp.jpg", quality=quality)
    smooth = disc.resize((size, size), Image.Resampling.BOX)
    smooth.save(tmp_path / "smooth.jpg", quality=quality)
    smooth.getchannel("G").save(tmp_path / "grey.jpg", quality=quality)
    smooth.getchannel("G").save(tmp_path / "grey.png")
    for path in tmp_path.iterdir():
        mask = read_mask(path, (size, size))
        assert not mask[:8].max() // 16 and mask[size // 2, size // 2] > 127, path


@pytest.mark.parametrize("color", [0, None])
def test_a_mask_in_colours_and_in_transparency_is_refused(tmp_path: Path, color: int | None):
    pixels = UPRIGHT if color is None else np.full((HEIGHT, WIDTH, 3), color, np.uint8)
    Image.fromarray(np.dstack([pixels, MASK]), "RGBA").save(tmp_path / "a.png")
    with pytest.raises(InvalidArgument, match=r"a\.png: expected a mask in its colours or in its transparency, got"):
        read_mask(tmp_path / "a.png", WHOLE)


@pytest.mark.parametrize("mode", ["L", "RGB", "1", "I;16", "RGBA"])
def test_a_mask_that_hides_everything_is_refused(tmp_path: Path, mode: str):
    Image.new(mode, WHOLE).save(tmp_path / "a.png")
    with pytest.raises(InvalidArgument, match=r"a\.png: expected a mask that lets a part of the photograph through"):
        read_mask(tmp_path / "a.png", WHOLE)


def test_pictures_of_telephones_and_raw_pictures_are_named_with_a_remedy(tmp_path: Path):
    for name in ("a.heic", "renamed.jpg"):
        (tmp_path / name).write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(99))
        with pytest.raises(InvalidArgument, match=rf"{name}: HEIC needs the package pillow-heif; install it, or"):
            read_picture(tmp_path / name, WHOLE)
    Image.fromarray(UPRIGHT).save(tmp_path / "b.DNG", format="TIFF")
    with pytest.raises(InvalidArgument, match=r"b\.DNG: raw photographs are not supported; develop it"):
        read_picture(tmp_path / "b.DNG", WHOLE)


def test_heic_is_read_where_pillow_heif_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pillow_heif.py").write_text(
        "import io\nfrom PIL import Image\nfrom PIL.PngImagePlugin import PngImageFile\n\n\n"
        "def register_heif_opener():\n"
        "    Image.new('RGB', (32, 48), (10, 20, 30)).save(file := io.BytesIO(), 'PNG')\n"
        "    opened = lambda *_: PngImageFile(io.BytesIO(file.getvalue()))\n"
        "    Image.register_open('HEIF', opened, lambda head: head[4:8] == b'ftyp')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Image, "ID", list(Image.ID))
    monkeypatch.setattr(Image, "OPEN", dict(Image.OPEN))
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + bytes(99))
    assert read_header(tmp_path / "a.heic").size == WHOLE
    assert read_picture(tmp_path / "a.heic", WHOLE)[0, 0].tolist() == [10, 20, 30]
    sys.modules.pop("pillow_heif")
