"""Speech: files of audio, good and bad, and the filter banks of what they hold."""

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
