"""What one call costs, in whole numbers.

Knows: rates in pico-dollars (10^-12 $) of one token, bands by the length of the prompt, and how a usage is billed.
Does not know: whose price it is, or from when on (book.py).

A cost is summed in pico-dollars and rounded once, to nano-dollars, half up. So 12 tokens at 0.02 $ a million are 240
nano-dollars, and no sum over requests drifts. Nothing here is a float.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from velox.protocol.token_usage import TokenUsage

__all__ = ["LABEL_SEPARATOR", "Band", "Cost", "Price", "compiled"]

# Between the parts of a name in a record: no part holds it.
LABEL_SEPARATOR: Final = "\x1f"

_PICO_PER_NANO: Final = 1000
_NANO_DIGITS: Final = 9


class Cost(NamedTuple):
    """Of one call, in pico-dollars."""

    pico: int

    @property
    def nano(self) -> int:
        """Return nano-dollars, rounded half up."""
        return (self.pico + _PICO_PER_NANO // 2) // _PICO_PER_NANO

    def dollars(self) -> str:
        """Return dollars as a decimal, of nano-dollars: "0.00000024"."""
        whole, part = divmod(self.nano, 10**_NANO_DIGITS)
        digits = f"{part:0{_NANO_DIGITS}d}".rstrip("0")
        return f"{whole}.{digits}" if digits else str(whole)


class Band(NamedTuple):
    """The rates for prompts of more than `above` tokens. Pico-dollars of one token; output None: not known."""

    above: int
    input: int
    output: int | None
    cached: int
    written: int
    written_1h: int
    audio_input: int
    audio_cached: int
    audio_output: int | None
    image_input: int
    image_output: int | None
    reasoning: int | None  # where it differs from output
    web_search: int
    request: int


class Price:
    """What calls of one model cost, at one upstream, in one tier, now. source: where it stands, for people.

    label: version and source, as records name it. regional_percent: see the constructor.
    """

    __slots__ = ("_bands", "_biller", "_first", "label", "regional_percent", "source", "version")

    def __init__(
        self,
        bands: tuple[Band, ...],
        source: str,
        version: str,
        *,
        biller: str | None = None,
        regional_percent: int = 100,
    ) -> None:
        """bands: by `above`, the first above -1. version: of the table or file, for the record of a call.

        biller: whose bill, where a reply tells it, counts before the rates; without bands it is all that counts.
        regional_percent: of the rates, what tokens cost where the call was kept within a region.
        """
        assert bands[0].above < 0 if bands else biller, "a price without a first band"
        self._first: Final = bands[0] if bands else None
        self._bands: Final = bands
        self.source: Final = source
        self.version: Final = version
        self.label: Final = f"{version}{LABEL_SEPARATOR}{source}"
        self._biller: Final = biller
        self.regional_percent: Final = regional_percent

    def __repr__(self) -> str:
        return f"<Price {self.source}>"

    @property
    def bands(self) -> tuple[Band, ...]:
        """Return the rates by the length of the prompt; none: only a reply can tell."""
        return self._bands

    def is_billed(self, usage: TokenUsage) -> bool:
        """Tell whether a call costs what its reply says that the vendor takes."""
        return usage.bill is not None and usage.bill.biller == self._biller

    def cost(self, usage: TokenUsage) -> Cost | None:
        """Return what a call cost; None: its tokens, or the rate of its answer, are not known, or not all of them.

        The whole prompt decides the band, and the band all rates, those of the cache among them. Parts that together
        are more than the whole are cut to it.
        """
        prompt, answer = usage.input, usage.output
        if usage.bill is not None and usage.bill.biller == self._biller:
            return Cost(usage.bill.pico)
        band = self._first
        if prompt is None or answer is None or usage.has_others or band is None:
            return None
        if len(self._bands) > 1:
            for each in self._bands:
                if prompt > each.above:
                    band = each
        rate = band.output
        if rate is None:
            if answer:
                return None
            rate = 0
        cached, written = usage.cached or 0, usage.written or 0
        cached = cached if cached < prompt else prompt
        left = prompt - cached
        written = written if written < left else left
        pico = (left - written) * band.input + cached * band.cached + written * band.written + answer * rate
        if written and usage.written_1h:
            pico += min(usage.written_1h, written) * (band.written_1h - band.written)
        if usage.reasoning and band.reasoning is not None:
            thought = min(usage.reasoning, answer)
            pico += thought * (band.reasoning - rate)
            answer -= thought  # what is left of it may be pictures and sound: each token is of one kind
        if usage.audio_input or usage.image_input or usage.audio_output or usage.image_output:
            pico += _modalities(usage, band, rate, left - written, cached, answer)
        if usage.is_regional:
            pico = (pico * self.regional_percent + 50) // 100
        pico += band.request
        if usage.web_searches:
            pico += usage.web_searches * band.web_search
        return Cost(pico)


def _modalities(usage: TokenUsage, band: Band, rate: int, fresh: int, cached: int, answer: int) -> int:
    """Return what audio and images cost beside the text that they were counted as.

    fresh: of the prompt, what is not of the cache. answer: what has the rate of its text.
    """
    audio_cached = min(usage.audio_cached or 0, cached, usage.audio_input or 0)
    audio = min((usage.audio_input or 0) - audio_cached, fresh)
    image = min(usage.image_input or 0, fresh - audio)
    pico = audio * (band.audio_input - band.input) + audio_cached * (band.audio_cached - band.cached)
    pico += image * (band.image_input - band.input)
    made = min(usage.audio_output or 0, answer)
    if band.audio_output is not None:
        pico += made * (band.audio_output - rate)
    if band.image_output is not None:
        pico += min(usage.image_output or 0, answer - made) * (band.image_output - rate)
    return pico


# A rate of genai-prices' units: one number, or the first one and then [above, number].
Rate = int | list[int | list[int]]


def compiled(rates: dict[str, Rate]) -> tuple[Band, ...]:
    """Return the bands of rates by unit; none: they have no rate of tokens or calls.

    What a model has no rate of its own for costs as what it is among: a cached token as one of the prompt.
    """
    if not {"input_mtok", "output_mtok", "requests_kcount"} & rates.keys():
        return ()
    starts = {-1}
    for rate in rates.values():
        if isinstance(rate, list):
            starts.update(int(tier[0]) for tier in rate[1:] if isinstance(tier, list))
    return tuple(_band(above, {unit: _at(rate, above) for unit, rate in rates.items()}) for above in sorted(starts))


def _at(rate: Rate, above: int) -> int:
    if isinstance(rate, int):
        return rate
    found = rate[0]
    for tier in rate[1:]:
        if isinstance(tier, list) and tier[0] <= above:
            found = tier[1]
    assert isinstance(found, int), "the first is a number"
    return found


def _band(above: int, rates: dict[str, int]) -> Band:
    text = rates.get("input_mtok", 0)
    cached = rates.get("cache_read_mtok", text)
    written = rates.get("cache_write_mtok", text)
    audio = rates.get("input_audio_mtok", text)
    return Band(
        above=above,
        input=text,
        output=rates.get("output_mtok"),
        cached=cached,
        written=written,
        written_1h=rates.get("cache_write_1h_mtok", written),
        audio_input=audio,
        audio_cached=rates.get("cache_audio_read_mtok", cached),
        audio_output=rates.get("output_audio_mtok"),
        image_input=rates.get("input_image_mtok", text),
        image_output=rates.get("output_image_mtok"),
        reasoning=rates.get("output_reasoning_mtok"),
        web_search=rates.get("web_searches_kcount", 0),
        request=rates.get("requests_kcount", 0),
    )
