"""Speech: files of audio, good and bad, and the filter banks of what they hold."""

import errno
import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.speech_corpora import cut, needs_soundfile, rewrite

from rotationout.experiments.problems import UnusableError
from rotationout.experiments.speech import audio
from rotationout.experiments.speech.audio import log_filter_banks, read_audio
from rotationout.experiments.speech.corpus import Utterance


@needs_soundfile
def test_audio_is_read_and_pieces_of_it(tmp_path: Path) -> None:
    import soundfile

    path = tmp_path / "a.flac"
    samples = torch.rand(3200) - 0.5
    soundfile.write(path, samples.numpy(), 16_000)
    torch.testing.assert_close(read_audio(Utterance("a", "train", "s", "YES", path)), samples, rtol=0, atol=2**-15)
    piece = read_audio(Utterance("a", "train", "s", "YES", path, 0.05, 0.15))
    torch.testing.assert_close(piece, samples[800:2400], rtol=0, atol=2**-15)


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 500] = bytes(500)
    path.write_bytes(content)


DAMAGE: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "gone": ("missing file", "the audio of utterance 'a' is not at .*a.wav", Path.unlink),
    "half a FLAC": ("damaged audio", "a.flac cannot be read, it may be damaged", lambda path: cut(path, 3000)),
    "half a WAV": ("truncated audio", "a.wav is cut off: it lacks 3244 bytes", lambda path: cut(path, 3200)),
    "no WAV": ("damaged audio", "a.wav cannot be read", lambda path: cut(path, 0)),
    "zeros in a FLAC": ("damaged audio", "a.flac cannot be read", spoil),
    "8 kHz": ("sample rate", "a.wav must be at 16000 Hz, got 8000", lambda p: rewrite(p, torch.zeros(800), 8_000)),
    "stereo": ("channels", "a.wav must have one channel, got 2", lambda path: rewrite(path, torch.zeros(800, 2))),
    "NaN": (
        "damaged audio",
        "a.wav has samples missing, or some that are not numbers",
        lambda path: rewrite(path, torch.full((800,), math.nan), subtype="FLOAT"),
    ),
}


@needs_soundfile
@pytest.mark.parametrize("kind", DAMAGE)
def test_bad_audio(tmp_path: Path, kind: str) -> None:
    reason, message, damage = DAMAGE[kind]
    path = tmp_path / f"a.{'flac' if 'FLAC' in kind else 'wav'}"
    rewrite(path, torch.rand(3200) - 0.5)
    damage(path)
    with pytest.raises(UnusableError, match=message) as error:
        read_audio(Utterance("a", "train", "s", "YES", path))
    assert error.value.reason == reason


@needs_soundfile
@pytest.mark.parametrize(
    ("kind", "endian"), [("WAV", "LITTLE"), ("WAV", "BIG"), ("WAVEX", "LITTLE"), ("NIST", "BIG"), ("FLAC", "FILE")]
)
def test_of_these_formats_whole_files_are_read_and_others_refused(tmp_path: Path, kind: str, endian: str) -> None:
    import soundfile

    path, samples = tmp_path / "audio", torch.rand(3200) - 0.5
    soundfile.write(path, samples.numpy(), 16_000, format=kind, endian=endian)
    read = read_audio(Utterance("a", "train", "s", "YES", path))
    torch.testing.assert_close(read, samples, rtol=0, atol=2**-15)
    for missing in (1, 100, 3000):
        cut(path, path.stat().st_size - missing)
        with pytest.raises(UnusableError, match=r"is cut off: it lacks|cannot be read, it may be damaged") as error:
            read_audio(Utterance("a", "train", "s", "YES", path))
        assert error.value.reason == ("damaged audio" if kind == "FLAC" else "truncated audio")


@needs_soundfile
@pytest.mark.parametrize("kind", ["AIFF", "AU", "CAF", "MP3", "OGG", "RF64", "W64"])
def test_formats_that_may_be_cut_off_unnoticed_are_refused(tmp_path: Path, kind: str) -> None:
    import soundfile

    soundfile.write(tmp_path / "audio", 0.1 * torch.randn(3200).numpy(), 16_000, format=kind)
    with pytest.raises(UnusableError, match=f"audio is {kind}, .*; convert it to FLAC or WAV") as error:
        read_audio(Utterance("a", "train", "s", "YES", tmp_path / "audio"))
    assert error.value.reason == "audio format"


@needs_soundfile
def test_audio_that_does_not_say_what_it_is(tmp_path: Path) -> None:
    """A file of samples alone, a FLAC without its length, and compressed SPHERE, which soundfile does not read."""
    import soundfile

    (tmp_path / "a.raw").write_bytes(bytes(6400))
    rewrite(tmp_path / "a.flac", torch.rand(3200) - 0.5)
    content = bytearray((tmp_path / "a.flac").read_bytes())
    content[21] &= 0xF0  # the number of samples is in the last 36 bits of these five bytes
    content[22:26] = bytes(4)
    (tmp_path / "a.flac").write_bytes(content)
    fields = "sample_count -i 900\nsample_rate -i 16000\nsample_n_bytes -i 2\nchannel_count -i 1\n"
    coding = "sample_byte_format -s2 10\nsample_coding -s26 pcm,embedded-shorten-v2.00\nend_head\n"
    (tmp_path / "a.wv1").write_bytes(f"NIST_1A\n   1024\n{fields}{coding}".encode().ljust(1024, b"\0") + bytes(900))
    soundfile.write(tmp_path / "a.sph", torch.zeros(3200).numpy(), 16_000, format="NIST")
    content = bytearray((tmp_path / "a.sph").read_bytes().replace(b"sample_count -i 3200\n", b"comment -i 3200\n     "))
    (tmp_path / "a.sph").write_bytes(content)
    for name, reason, message in (
        ("a.sph", "audio format", r"a.sph does not say how long it is; convert it"),
        ("a.raw", "damaged audio", r"a.raw cannot be read"),
        ("a.flac", "audio format", r"a.flac does not say how long it is; convert it"),
        (
            "a.wv1",
            "audio format",
            r"a.wv1 is compressed NIST SPHERE, which soundfile does not read; convert it to FLAC",
        ),
    ):
        with pytest.raises(UnusableError, match=message) as error:
            read_audio(Utterance("a", "train", "s", "YES", tmp_path / name))
        assert error.value.reason == reason


@needs_soundfile
def test_audio_that_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    rewrite(tmp_path / "a.wav", torch.zeros(3200))
    (tmp_path / "folder.wav").mkdir()
    monkeypatch.setattr(Path, "open", refuse)
    for name, message in (
        ("a.wav", r"a.wav cannot be read: Permission denied"),
        ("folder.wav", r"folder.wav must be a file, but is a folder"),
        (f"{500 * 'a'}.wav", r"a.wav cannot be read: File name too long"),
    ):
        with pytest.raises(UnusableError, match=message) as error:
            read_audio(Utterance("a", "train", "s", "YES", tmp_path / name))
        assert error.value.reason == "unreadable file"


@needs_soundfile
def test_a_piece_beyond_the_end(tmp_path: Path) -> None:
    rewrite(tmp_path / "a.wav", torch.zeros(3200))
    with pytest.raises(UnusableError, match=r"a.wav has 0.20 s, but utterance 'a' is from 0.10 to 0.30 s"):
        read_audio(Utterance("a", "train", "s", "YES", tmp_path / "a.wav", 0.1, 0.3))


def test_audio_needs_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'rotationout\[speech\]'"):
        read_audio(Utterance("a", "train", "s", "YES", Path("a.flac")))


@pytest.mark.parametrize("frequency", [300.0, 1000.0, 4000.0])
def test_a_tone_is_loudest_in_its_band(frequency: float) -> None:
    """The peak of band k, from 0, is at mel (k + 1) / 41 of the top."""
    time = torch.arange(16_000) / 16_000
    bands = log_filter_banks(torch.sin(2 * math.pi * frequency * time))
    assert bands.shape == (98, 40)
    mel = [2595 * math.log10(1 + f / 700) for f in (frequency, 8000.0)]
    assert abs(bands.mean(0).argmax().item() - (mel[0] / mel[1] * 41 - 1)) <= 0.6
    louder = log_filter_banks(10 * torch.sin(2 * math.pi * frequency * time))
    band = int(bands.mean(0).argmax())
    torch.testing.assert_close(louder[:, band], bands[:, band] + math.log(100))


def test_bands_cover_every_frequency_once() -> None:
    bands = audio._mel_bands()
    between = bands[2:188].sum(1)  # from the first peak, 44 Hz, to the last, 7 481 Hz, every 40 Hz
    torch.testing.assert_close(between, torch.ones_like(between))
    assert (bands.amax(0) > 0).all()


def test_silence_and_too_little_sound() -> None:
    assert log_filter_banks(torch.zeros(400)).isfinite().all()
    with pytest.raises(ValueError, match=r"at least 400, one frame, got shape \(399,\)"):
        log_filter_banks(torch.zeros(399))
