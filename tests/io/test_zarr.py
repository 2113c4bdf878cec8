"""Zarr folders as the package zarr writes them: every way of storing chunks gives the same numbers."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr import codecs

from densecal.errors import InputError
from densecal.io.readers.zarr_arrays import open_zarr
from densecal.io.readers.zarr_chunks import zstd_size

SHAPE = (7, 5, 6)
COMPRESSORS = {
    2: [None, *({"id": kind} for kind in ("zlib", "gzip", "bz2", "zstd", "blosc", "lz4"))],
    3: [
        None, codecs.GzipCodec(), codecs.ZstdCodec(checksum=True), codecs.BloscCodec(cname="lz4", typesize=4),
        [codecs.BloscCodec(cname="zlib", typesize=1, shuffle="bitshuffle"), codecs.GzipCodec()],
        [codecs.ZstdCodec(), codecs.Crc32cCodec()], codecs.Crc32cCodec(),
    ],
}  # fmt: skip


def read(path: Path, window: tuple[slice, ...] = ()) -> np.ndarray:
    with open_zarr(path, None, 1 << 20) as stored:
        return stored.read(window)


def values(dtype: str) -> np.ndarray:
    numbers = np.random.default_rng(0).integers(0, 100, SHAPE)
    return (numbers % 2 if dtype == "bool" else numbers).astype(dtype)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_every_compression_is_read(tmp_path, zarr_format):
    import numcodecs

    for number, one in enumerate(COMPRESSORS[zarr_format]):
        compressors = None if one is None else numcodecs.get_codec(one) if isinstance(one, dict) else one
        array = zarr.create_array(
            str(tmp_path / f"{number}.zarr"), shape=SHAPE, chunks=(3, 2, 4), dtype="f4", zarr_format=zarr_format,
            compressors=compressors, filters=None,
        )  # fmt: skip
        array[:] = values("f4")
        assert np.array_equal(read(tmp_path / f"{number}.zarr"), values("f4")), one


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", ">i2", "uint64", "float16", "float32", ">f8"])
def test_every_type_is_read(tmp_path, zarr_format, dtype):
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=SHAPE, dtype=dtype, zarr_format=zarr_format)
    array[:] = values(dtype)
    result = read(tmp_path / "a.zarr")
    assert np.array_equal(result, values(dtype))
    assert result.dtype == np.dtype(dtype).newbyteorder("=")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_part_of_any_grid_is_what_zarr_reads(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("zarr") / "a.zarr"
    zarr_format = data.draw(st.sampled_from([2, 3]))
    chunks = data.draw(st.tuples(*(st.integers(1, n) for n in SHAPE)))
    options: dict[str, object] = {"chunks": chunks, "fill_value": data.draw(st.sampled_from([0.0, np.nan, np.inf, 3]))}
    if zarr_format == 2:
        options["order"] = data.draw(st.sampled_from("CF"))
    else:
        if data.draw(st.booleans()):
            options["shards"] = tuple(c * data.draw(st.integers(1, 3)) for c in chunks)
        options["filters"] = [codecs.TransposeCodec(order=data.draw(st.permutations(range(3))))]
    options["chunk_key_encoding"] = {
        "name": "v2" if zarr_format == 2 else "default",
        "separator": data.draw(st.sampled_from("./")),
    }
    array = zarr.create_array(str(path), shape=SHAPE, dtype="f4", zarr_format=zarr_format, **options)
    filled = tuple(slice(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))) for n in SHAPE)
    array[filled] = values("f4")[filled]
    window = tuple(slice(*sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))) for n in SHAPE)
    window = window[: data.draw(st.integers(0, 3))]
    assert np.array_equal(read(path, window), array[window or ...], equal_nan=True)


def test_shards_whose_index_comes_first_are_read(tmp_path):
    sharding = codecs.ShardingCodec(chunk_shape=(1, 5, 3), index_location="start")
    array = zarr.create(store=str(tmp_path / "a.zarr"), shape=SHAPE, chunks=(2, 5, 6), dtype="f4", codecs=[sharding])
    array[:] = values("f4")
    assert np.array_equal(read(tmp_path / "a.zarr"), values("f4"))


def test_a_changed_byte_is_noticed_by_the_checksum(tmp_path):
    array = zarr.create_array(
        str(tmp_path / "a.zarr"), shape=SHAPE, chunks=SHAPE, dtype="f4", compressors=codecs.Crc32cCodec()
    )
    array[:] = values("f4")
    (chunk,) = (path for path in (tmp_path / "a.zarr" / "c").rglob("*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[10] ^= 1
    chunk.write_bytes(content)
    with pytest.raises(InputError, match="a chunk with a wrong checksum"):
        read(tmp_path / "a.zarr")


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_damaged_metadata_are_one_line(tmp_path, zarr_format):
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=SHAPE, dtype="f4", zarr_format=zarr_format)
    array[:] = values("f4")
    path = tmp_path / "a.zarr" / ("zarr.json" if zarr_format == 3 else ".zarray")
    about = json.loads(path.read_text())
    wrong = [None, [], {}, -1, 2**70, "x", 1.5, True]
    messages = []
    for key in about:
        for value in wrong:
            path.write_text(json.dumps(about | {key: value}))
            try:
                read(tmp_path / "a.zarr")
            except InputError as error:
                messages.append(str(error))
    assert len(messages) > len(about) * len(wrong) // 2
    assert max(map(len, messages)) < 500


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"compressor": {"id": "pickle"}}, "the codec 'pickle'; expected one of zlib"),
        ({"filters": [{"id": "pickle"}]}, "the filter 'pickle'; expected an array without filters"),
        ({"dtype": "|O"}, r"values of type \|O; expected plain numbers"),
        ({"zarr_format": 4}, "Zarr format 4; expected format 2 or 3"),
    ],
)
def test_what_is_not_read_is_named(tmp_path, change, words):
    array = zarr.create_array(str(tmp_path / "a.zarr"), shape=SHAPE, dtype="f4", zarr_format=2)
    array[:] = values("f4")
    path = tmp_path / "a.zarr" / ".zarray"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=words):
        read(tmp_path / "a.zarr")


def test_an_image_outside_its_folder_is_not_opened(tmp_path):
    zarr.create_array(str(tmp_path / "other.zarr"), data=values("f4"))
    group = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    group.attrs["multiscales"] = [{"datasets": [{"path": "../other.zarr"}]}]
    with pytest.raises(InputError, match=r"an array at '../other.zarr'; expected one inside this folder"):
        read(tmp_path / "a.zarr")


@pytest.mark.parametrize("length", [0, 10, 255, 256, 300, 70_000, 3_000_000])
def test_the_length_of_a_zstd_frame_is_read(length):
    from numcodecs import Zstd

    assert zstd_size(bytes(Zstd(3).encode(bytes(length) or b""))) == length


def test_a_zstd_frame_of_unknown_length_is_refused():
    frame = b"\x28\xb5\x2f\xfd\x04\x58\x09\x00\x00abc"
    with pytest.raises(ValueError, match="does not declare its decompressed length"):
        zstd_size(frame)
