"""Read the audio of an utterance, and compute its log mel filter-bank features.

Reading audio needs the extra ``speech``. An utterance that cannot be used raises an `UnusableError`, whose message
names its file; `rotationout.experiments.speech.features` counts these and goes on.
"""

from __future__ import annotations

import functools
import math
import re
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..problems import UnusableError
from .corpus import Utterance

__all__ = ["FEATURES", "log_filter_banks", "read_audio"]

SAMPLE_RATE = 16_000
WINDOW, HOP = 400, 160
"""In samples: frames of 25 ms, one every 10 ms."""
FORMATS = {"FLAC", "NIST", "WAV", "WAVEX"}
"""The formats, by soundfile's names, of which a file that is cut off is noticed: of others soundfile reads what is left
as if it were all. FLAC's decoder notices by itself, for the others there is `_missing_bytes`."""
FEATURES = 40
"""The number of mel bands, as many as the paper's network has inputs."""

CONVERT = "convert it to FLAC or WAV"
UNKNOWN_LENGTH = 2**62
"""soundfile's number of samples is about this, or more, if a file does not say."""


def read_audio(utterance: Utterance) -> Tensor:
    """The samples of an utterance, fp32 in [−1, 1)."""
    try:
        import soundfile
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("reading audio needs soundfile: pip install 'rotationout[speech]'") from error
    path = utterance.path
    _check_complete(path, utterance.name)
    try:
        with soundfile.SoundFile(path) as file:
            rate, channels, length = file.samplerate, file.channels, file.frames
            start = round(utterance.start * rate)
            stop = length if utterance.end is None else round(utterance.end * rate)
            if file.format not in FORMATS:
                raise UnusableError(
                    "audio format",
                    f"{path} is {file.format}, of which it cannot be told whether it is whole; {CONVERT}",
                )
            if length >= UNKNOWN_LENGTH:
                raise UnusableError("audio format", f"{path} does not say how long it is; {CONVERT}")
            if rate != SAMPLE_RATE:
                raise UnusableError("sample rate", f"{path} must be at {SAMPLE_RATE} Hz, got {rate} Hz; resample it")
            if channels != 1:
                raise UnusableError("channels", f"{path} must have one channel, got {channels}")
            if stop > length or start >= stop:
                raise UnusableError(
                    "truncated audio",
                    f"{path} has {length / rate:.2f} s, but utterance {utterance.name!r} is from "
                    f"{utterance.start:.2f} to {stop / rate:.2f} s",
                )
            file.seek(start)
            samples = torch.from_numpy(file.read(stop - start, dtype="float32"))
    except (soundfile.SoundFileError, TypeError) as error:  # TypeError: ".raw", which has no header
        raise UnusableError("damaged audio", f"{path} cannot be read, it may be damaged: {error}") from error
    if samples.numel() != stop - start or not bool(samples.isfinite().all()):
        raise UnusableError("damaged audio", f"{path} has samples missing, or some that are not numbers")
    return samples


def _check_complete(path: Path, name: str) -> None:
    """Check that the audio of utterance ``name`` is there, can be read, and is as long as its header says."""
    try:
        if not path.exists():
            raise UnusableError("missing file", f"the audio of utterance {name!r} is not at {path}")
        if not path.is_file():
            raise UnusableError("unreadable file", f"{path} must be a file, but is a folder or a device")
        with path.open("rb") as file:
            head, size = file.read(1024), path.stat().st_size
    except OSError as error:
        raise UnusableError("unreadable file", f"{path} cannot be read: {error.strerror}") from error
    if head.startswith(b"NIST") and b"embedded-" in head:  # as on the discs of WSJ
        raise UnusableError(
            "audio format", f"{path} is compressed NIST SPHERE, which soundfile does not read; {CONVERT}"
        )
    missing = _missing_bytes(head, size)
    if missing >= UNKNOWN_LENGTH:
        raise UnusableError("audio format", f"{path} does not say how long it is; {CONVERT}")
    if missing > 0:
        raise UnusableError("truncated audio", f"{path} is cut off: it lacks {missing} bytes")


def _missing_bytes(head: bytes, size: int) -> int:
    """How many bytes a WAV or NIST file lacks, given its first ones: soundfile reads a truncated one as a shorter one.

    Not more than 0 if it is whole, if a WAV's header does not say, or if it is in another format; `UNKNOWN_LENGTH` if a
    NIST file's header does not say.
    """
    order: dict[bytes, Literal["little", "big"]] = {b"RIFF": "little", b"RIFX": "big"}
    if head[:4] in order:
        said = int.from_bytes(head[4:8], order[head[:4]])
        streamed = said == 0 or said >= 0x7FFFF000  # written by a program that did not know the length
        return 0 if streamed else said + 8 - size
    if nist := re.match(rb"NIST_1A\s+(\d+)\s", head):
        fields = {name: int(value) for name, value in re.findall(rb"(?m)^(\w+) +-\w+ +(\d+)\s", head)}
        factors = [fields.get(name, 0) for name in (b"sample_count", b"sample_n_bytes", b"channel_count")]
        return int(nist[1]) + math.prod(factors) - size if all(factors) else UNKNOWN_LENGTH
    return 0


def log_filter_banks(samples: Tensor) -> Tensor:
    """The logarithm of the energy in `FEATURES` bands of equal width on the mel scale, (frames, features)."""
    if samples.ndim != 1 or samples.numel() < WINDOW:
        raise ValueError(f"samples must be a vector of at least {WINDOW}, one frame, got shape {tuple(samples.shape)}")
    frames = samples.unfold(0, WINDOW, HOP) * torch.hann_window(WINDOW, dtype=samples.dtype, device=samples.device)
    power = torch.fft.rfft(frames).abs().square()
    energy: Tensor = power @ _mel_bands().to(power)
    return energy.clamp(min=1e-10).log()  # finite for digital silence, which has no energy


@functools.cache
def _mel_bands() -> Tensor:
    """The weight of every frequency of a frame's spectrum in each band, (WINDOW // 2 + 1, features).

    Bands are triangles, from the peak of the band before to the peak of the next. The peaks are equally spaced in
    mel(f) = 2595 · log10(1 + f / 700) (O'Shaughnessy 1987), from 0 to half the sample rate.
    """
    top = 2595 * math.log10(1 + SAMPLE_RATE / 2 / 700)
    corners = 700 * (10 ** (torch.linspace(0, top, FEATURES + 2, dtype=torch.float64) / 2595) - 1)
    low, peak, high = corners[:-2], corners[1:-1], corners[2:]
    frequency = torch.linspace(0, SAMPLE_RATE / 2, WINDOW // 2 + 1, dtype=torch.float64).unsqueeze(1)
    rise, fall = (frequency - low) / (peak - low), (high - frequency) / (high - peak)
    return torch.minimum(rise, fall).clamp(min=0)
